"""The catalogue's kernels, compiled for several architectures and looked at.

The machine code as it was: registers, instructions and accesses of every kernel, in a file.
Compared only with the compiler that made it: another version makes other code of the same source,
so each version that is looked after has a file of its own, ``nvrtc-13.5.json``.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dsv4kv.errors import RecordError
from dsv4kv.files import make_folder, read_json, replacing, shipped
from dsv4kv.ops.cuda.compile import check_architecture, load_cubins
from dsv4kv.ops.cuda.inspection import KernelReport, find_disassembler, inspect_cubins
from dsv4kv.ops.launches.catalogue import PROMISES, WIDE, Example, Promise
from dsv4kv.ops.launches.launch import KernelModule
from dsv4kv.processes import usable_cores


@dataclass(frozen=True)
class Finding:
    """What an example's kernel became for one architecture."""

    example: Example
    architecture: str
    report: KernelReport

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.example.launch.kernel

    @property
    def name(self) -> str:
        """Kernel and subject: ``gather_topk fp8_ds_mla × 32``, unique in the catalogue."""
        return f"{self.kernel} {self.example.subject}"


def survey(
    examples: Sequence[Example],
    architectures: Sequence[str],
    on_done: Callable[[int], None] = lambda _: None,
) -> list[Finding]:
    """Compile and inspect each example for the architectures that it supports, in order.

    Looks for the disassembler first, as compiling takes longest; ``on_done`` is called with how
    many more modules are compiled.

    Raises:
        CudaUnavailable: A package or tool is missing; says which.
        DeviceError: An architecture that cannot be, or a kernel that does not compile.
    """
    find_disassembler()
    for architecture in architectures:
        check_architecture(architecture)
    modules = [modules_of(examples, each) for each in architectures]
    cubins = [load_cubins(*each, on_done) for each in zip(modules, architectures, strict=True)]
    with ThreadPoolExecutor(usable_cores()) as pool:
        inspected = list(pool.map(inspect_cubins, architectures, cubins))
    reports = {
        (architecture, module, report.kernel): report
        for architecture, *of_modules in zip(architectures, modules, inspected, strict=True)
        for module, found in zip(*of_modules, strict=True)
        for report in found
    }
    return [
        Finding(each, architecture, reports[architecture, each.launch.module, each.launch.kernel])
        for each in examples
        for architecture in filter(each.runs_on, architectures)
    ]


def modules_of(examples: Iterable[Example], architecture: str) -> list[KernelModule]:
    """What is compiled for an architecture."""
    wanted = (each.launch.module for each in examples if each.runs_on(architecture))
    return list(dict.fromkeys(wanted))


_COPY = "UBLKCP."

FIRST_DEPENDENT = 90
"""From sm_90 on a kernel may begin before the one in front of it has ended: each waits first."""


def broken_promises(findings: Iterable[Finding]) -> Iterator[str]:
    """A sentence for each promise that machine code does not keep."""
    for finding in findings:
        where, report = f"{finding.name} on {finding.architecture}", finding.report
        spills = [kind for kind in report.accesses if kind.startswith(("LDL.", "STL."))]
        if report.local_bytes or spills:
            yield (
                f"{where} uses {report.local_bytes} B of local memory a thread (spilled registers "
                "or arrays indexed at run time)."
            )
        if _is_hopper_or_newer(finding.architecture) and report.early != 0:
            behaviour = "never waits" if report.early is None else "touches memory before it waits"
            yield f"{where} {behaviour} for the kernel in front of it: begin with begin_kernel()."
        promised = [each for name, each in PROMISES.items() if fnmatchcase(finding.name, name)]
        for promise in promised or [WIDE]:
            yield from _broken_widths(where, promise, report.accesses)
            if report.under_way < promise.under_way:
                yield (
                    f"{where} waits after {report.under_way} wide loads, not after "
                    f"{promise.under_way}: the compiler moved the others after the wait."
                )
            if promise.copies and not any(kind.startswith(_COPY) for kind in report.accesses):
                yield f"{where} has no bulk copy into shared memory."
            if promise.products and not report.products:
                yield f"{where} has no instruction for the tensor cores."


def _is_hopper_or_newer(architecture: str) -> bool:
    return int("".join(filter(str.isdigit, architecture))) >= FIRST_DEPENDENT


def _broken_widths(where: str, promise: Promise, accesses: dict[str, int]) -> Iterator[str]:
    loads, stores = _widths("LDG", accesses), _widths("STG", accesses)
    if promise.loads and max(loads, default=0) < promise.loads:
        yield f"{where} has no load of {promise.loads} bits, only {_list_bits(loads)}."
    if promise.stores and min(stores, default=0) < promise.stores:
        yield f"{where} has stores of {_list_bits(stores)} bits, not {promise.stores} throughout."


def _widths(kind: str, accesses: dict[str, int]) -> list[int]:
    pairs = (name.partition(".") for name in accesses)
    return sorted(int(bits) for name, _, bits in pairs if name == kind)


def _list_bits(widths: list[int]) -> str:
    return " and ".join(map(str, widths)) or "none"


Numbers = dict[str, int]
"""What is compared: ``registers``, ``instructions``, …, and accesses as ``LDG.128``."""


@dataclass(frozen=True)
class Baseline:
    """The numbers of every kernel and architecture, and the NVRTC that made them."""

    nvrtc: str
    kernels: dict[str, dict[str, Numbers]]


def shipped_baseline(nvrtc: str) -> Path:
    """The file of a version of NVRTC, in the source tree or the installed package."""
    return shipped("results/sass") / f"nvrtc-{nvrtc}.json"


def make_baseline(findings: Sequence[Finding], nvrtc: str) -> Baseline:
    """The findings as a baseline."""
    kernels: dict[str, dict[str, Numbers]] = {}
    for finding in findings:
        kernels.setdefault(finding.name, {})[finding.architecture] = _numbers(finding)
    return Baseline(nvrtc, kernels)


def save_baseline(baseline: Baseline, path: Path) -> None:
    """Write as JSON, one line a kernel and architecture. Raises ``RecordError``."""
    text = json.dumps(asdict(baseline), ensure_ascii=False, indent=2)
    flat = text.replace("\n        ", " ").replace("\n      }", " }")
    try:
        make_folder(path.parent)
        with replacing(path) as file:
            file.write(f"{flat}\n".encode())
    except OSError as error:
        raise RecordError(
            f"{path} cannot be written ({error.strerror}): name another file with --baseline."
        ) from None


def load_baseline(path: Path) -> Baseline | None:
    """Read what ``save_baseline`` wrote; None if there is no file. Raises ``RecordError``."""
    try:
        document: Any = read_json(path)
        return Baseline(nvrtc=str(document["nvrtc"]), kernels=dict(document["kernels"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path} is no baseline ({type(error).__name__}: {error}): write it again with "
            "dsv4kv kernels --write-baseline."
        ) from None


def drift(findings: Sequence[Finding], baseline: Baseline) -> Iterator[str]:
    """A sentence for each kernel that is not as in the baseline."""
    for finding in findings:
        where = f"{finding.name} on {finding.architecture}"
        before = baseline.kernels.get(finding.name, {}).get(finding.architecture)
        if before is None:
            yield f"{where} is not in the baseline."
        elif changes := _changes(before, _numbers(finding)):
            yield f"{where} changed: {changes}."
    names = {finding.name for finding in findings}
    architectures = {finding.architecture for finding in findings}
    for name, numbers in baseline.kernels.items():
        if name not in names and not architectures.isdisjoint(numbers):
            yield f"{name} is in the baseline, but no longer in the catalogue."


def _numbers(finding: Finding) -> Numbers:
    report = finding.report
    return {
        "registers": report.registers,
        "instructions": report.instructions,
        "local_bytes": report.local_bytes,
        "shared_bytes": report.shared_bytes,
        "under_way": report.under_way,
        **report.accesses,
        **report.products,
    }


def _changes(before: Numbers, after: Numbers) -> str:
    keys = dict.fromkeys([*before, *after])
    return ", ".join(
        f"{key} {before.get(key, 0)} → {after.get(key, 0)}"
        for key in keys
        if before.get(key, 0) != after.get(key, 0)
    )
