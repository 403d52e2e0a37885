"""What a kernel became: registers, instructions, local and shared memory, loads and stores.

Read from cubins, and their machine code with NVIDIA's ``nvdisasm``, which needs no GPU. It takes
half a second to start, so the kernels of one architecture go through it in one piece.

The catalogue's kernels are compared with a baseline: a file of registers, instructions and
accesses. Another compiler makes other code of the same source, so each version that is looked
after has a file of its own, ``nvrtc-13.5.json``.
"""

import functools
import importlib.util
import json
import os
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from dsv4kv.errors import ConfigError, CudaUnavailable, DeviceError
from dsv4kv.files import replacing, shipped, temporary_folder
from dsv4kv.ops.cuda.compile import check_architecture, load_cubins
from dsv4kv.ops.launches.catalogue import Example
from dsv4kv.ops.launches.launch import KernelModule
from dsv4kv.processes import find_program, run_bounded, usable_cores

_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_CONTENT = 8  # SHT_NOBITS
_SYMBOL_BYTES = 24

# Kinds of what .nv.info says, and how those look that have content of a size that they say.
_REGISTERS, _FRAME, _PARAMETER, _SIZED = 0x2F, 0x11, 0x17, 4


def sections(elf: bytes) -> dict[str, bytes]:
    """Every section of a 64-bit little-endian ELF file by name; zeros for one without content."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [_SECTION.unpack_from(elf, table + i * size) for i in range(count)]
    contents = [
        bytes(size) if kind == _NO_CONTENT else elf[at : at + size]
        for _, kind, _, _, at, size, *_ in headers
    ]
    texts = contents[names_at]
    names = [texts[header[0] : texts.index(b"\0", header[0])].decode() for header in headers]
    return dict(zip(names, contents, strict=True))


def _facts(section: bytes) -> Iterator[tuple[int, bytes]]:
    """What the compiler says in a section ``.nv.info``: kinds and contents."""
    at = 0
    while at < len(section):
        form, kind, size = struct.unpack_from("<BBH", section, at)
        size = size if form == _SIZED else 0
        yield kind, section[at + 4 : at + 4 + size]
        at += 4 + size


_INSTRUCTION_BYTES = 16
_CODE = ".text."
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_MEMORY = re.compile(r"(?:LD|ST|ATOM|RED|UBLKCP)(?!C)[A-Z]*$")  # all but constants (LDC, LDCU)
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
_WAIT = "ACQBULK"  # griddepcontrol.wait
_PRODUCT = re.compile(r"[A-Z]+MMA\.[0-9]+")  # of matrices
_JUMP = re.compile(r"BRA|BRX|JMP|JMX|CALL|EXIT|RET")


@dataclass(frozen=True)
class KernelReport:
    """One kernel's machine code."""

    kernel: str  # its name
    registers: int  # of a thread
    # stack frame and local memory of a thread: spilled registers, arrays that did not fit into
    # registers
    local_bytes: int
    shared_bytes: int  # static shared memory of a block
    instructions: int  # without padding
    parameter_bytes: tuple[int, ...]  # size of each parameter
    # instructions by kind and bits of one thread's access, such as ``LDG.128``
    accesses: dict[str, int]
    # instructions that touch memory or leave the straight line before the one that waits for the
    # kernel in front; None if none waits
    early: int | None
    # instructions for the tensor cores by kind and shape, such as ``HMMA.16816``
    products: dict[str, int] = field(default_factory=dict)


def inspect_cubins(architecture: str, cubins: Sequence[bytes]) -> list[list[KernelReport]]:
    """Report the kernels of each cubin, all of one architecture.

    Raises:
        CudaUnavailable: A tool is missing; says which and how to install it.
        DeviceError: A tool refuses a cubin.
    """
    found = [sections(cubin) for cubin in cubins]
    codes = [content for each in found for name, content in each.items() if name.startswith(_CODE)]
    instructions = iter(_disassemble(architecture, codes))
    return [list(_reports(each, instructions)) for each in found]


def find_disassembler() -> Path:
    """``nvdisasm``: from NVIDIA's wheel, else from PATH; raises ``CudaUnavailable``."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(place).glob("*/bin/nvdisasm"), reverse=True):
            return found
    if on_path := find_program("nvdisasm"):
        return Path(on_path)
    raise CudaUnavailable(
        "nvdisasm is not here: pip install 'dsv4kv[cuda]', which brings nvidia-cuda-nvdisasm (or "
        "put a CUDA toolkit's bin folder on PATH)."
    )


def _reports(found: dict[str, bytes], instructions: Iterator[list[str]]) -> Iterator[KernelReport]:
    """Of each kernel of a cubin, whose instructions come in the order of its sections."""
    symbols, texts = found[".symtab"], found[".strtab"]
    usage: dict[tuple[str, int], int] = {}
    for kind, content in _facts(found[".nv.info"]):
        if kind in (_REGISTERS, _FRAME):
            symbol, number = struct.unpack("<II", content)
            (at,) = struct.unpack_from("<I", symbols, symbol * _SYMBOL_BYTES)
            usage[texts[at : texts.index(b"\0", at)].decode(), kind] = number
    for name in [each.removeprefix(_CODE) for each in found if each.startswith(_CODE)]:
        mnemonics = next(instructions)
        accesses = Counter(filter(None, map(_access, mnemonics)))
        products = Counter(match[0] for match in map(_PRODUCT.match, mnemonics) if match)
        early = None
        if _WAIT in mnemonics:
            before = mnemonics[: mnemonics.index(_WAIT)]
            early = sum(_access(each) is not None or bool(_JUMP.match(each)) for each in before)
        facts = _facts(found[f".nv.info.{name}"])
        parameters = sorted(
            struct.unpack("<4xHHI", content) for kind, content in facts if kind == _PARAMETER
        )
        yield KernelReport(
            kernel=name,
            registers=usage[name, _REGISTERS],
            local_bytes=usage[name, _FRAME],
            shared_bytes=len(found.get(f".nv.shared.{name}", b"")),
            instructions=len(mnemonics),
            parameter_bytes=tuple(packed >> 18 for _, _, packed in parameters),
            accesses=dict(sorted(accesses.items())),
            early=early,
            products=dict(sorted(products.items())),
        )


def _disassemble(architecture: str, codes: Sequence[bytes]) -> list[list[str]]:
    """Mnemonics of each piece of code, such as ``LDG.E.128``, without padding."""
    with temporary_folder("dsv4kv-code-") as folder:
        (folder / "code").write_bytes(b"".join(codes))
        binary = architecture.replace("sm_", "SM")
        command = [str(find_disassembler()), "--binary", binary, str(folder / "code")]
        try:
            status, text = run_bounded(
                command, dict(os.environ), 600.0, stderr=subprocess.STDOUT, most_bytes=2**30
            )
        except subprocess.TimeoutExpired:
            status, text = -1, "it printed without end"
    if status:
        words = text.strip()[-500:]
        raise DeviceError(f"nvdisasm failed ({words}): install one as new as NVRTC.")
    found = _INSTRUCTION.findall(text)
    pieces: list[list[str]] = []
    start = 0
    for content in codes:
        end = start + len(content) // _INSTRUCTION_BYTES
        pieces.append([each for each in found[start:end] if each != "NOP"])
        start = end
    if start != len(found):
        raise DeviceError(
            f"nvdisasm shows {len(found)} instructions of {architecture}, the code has {start}: "
            "it does not know these cubins; install one as new as NVRTC."
        )
    return pieces


@functools.cache
def _access(mnemonic: str) -> str | None:
    """``LDG.E.NA.128.CONSTANT`` is ``LDG.128``; None for what touches no memory."""
    kind, *modifiers = mnemonic.split(".")
    if not _MEMORY.match(kind):
        return None
    bits = next((_BITS[part] for part in modifiers if part in _BITS), 32)
    return f"{kind}.{bits}"


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


FIRST_DEPENDENT = 90
"""From sm_90 on a kernel may begin before the one in front of it has ended: each waits first."""


def broken_promises(findings: Iterable[Finding]) -> Iterator[str]:
    """A sentence for each kernel that uses local memory, or does not wait before it begins."""
    for finding in findings:
        where, report = f"{finding.name} on {finding.architecture}", finding.report
        spills = [kind for kind in report.accesses if kind.startswith(("LDL.", "STL."))]
        if report.local_bytes or spills:
            yield (
                f"{where} uses {report.local_bytes} B of local memory a thread (spilled registers "
                "or arrays indexed at run time)."
            )
        number = int(re.sub(r"\D", "", finding.architecture))
        if number >= FIRST_DEPENDENT and report.early != 0:
            behaviour = "never waits" if report.early is None else "touches memory before it waits"
            yield f"{where} {behaviour} for the kernel in front of it: begin with begin_kernel()."


Numbers = dict[str, int]
"""What is compared: ``registers``, ``instructions``, …, and accesses as ``LDG.128``."""

Baseline = dict[str, dict[str, Numbers]]
"""The numbers of every kernel and architecture."""


def baseline_path(nvrtc: str) -> Path:
    """The file of a version of NVRTC, in the source tree or the installed package."""
    return shipped("results/sass") / f"nvrtc-{nvrtc}.json"


def save_baseline(findings: Sequence[Finding], nvrtc: str) -> Path:
    """Write the findings as JSON, one line a kernel and architecture."""
    kernels: Baseline = {}
    for finding in findings:
        kernels.setdefault(finding.name, {})[finding.architecture] = _numbers(finding)
    document = {"nvrtc": nvrtc, "kernels": kernels}
    text = json.dumps(document, ensure_ascii=False, indent=2)
    flat = text.replace("\n        ", " ").replace("\n      }", " }")
    path = baseline_path(nvrtc)
    with replacing(path) as file:
        file.write(f"{flat}\n".encode())
    return path


def load_baseline(nvrtc: str) -> Baseline:
    """What ``save_baseline`` wrote; raises ``ConfigError`` for a version that has none."""
    path = baseline_path(nvrtc)
    if not path.is_file():
        raise ConfigError(
            f"no baseline of NVRTC {nvrtc} to compare with: {path} is not there "
            "(--write-baseline makes it)."
        )
    baseline: Baseline = json.loads(path.read_bytes())["kernels"]
    return baseline


def drift(findings: Sequence[Finding], baseline: Baseline) -> Iterator[str]:
    """A sentence for each kernel that is not as in the baseline."""
    for finding in findings:
        where = f"{finding.name} on {finding.architecture}"
        before = baseline.get(finding.name, {}).get(finding.architecture)
        if before is None:
            yield f"{where} is not in the baseline."
        elif before != (after := _numbers(finding)):
            changes = (
                f"{key} {before.get(key, 0)} → {after.get(key, 0)}"
                for key in before | after
                if before.get(key, 0) != after.get(key, 0)
            )
            yield f"{where} changed: {', '.join(changes)}."
    names = {finding.name for finding in findings}
    architectures = {finding.architecture for finding in findings}
    for name, numbers in baseline.items():
        if name not in names and not architectures.isdisjoint(numbers):
            yield f"{name} is in the baseline, but no longer in the catalogue."


def _numbers(finding: Finding) -> Numbers:
    report = finding.report
    names = ("registers", "instructions", "local_bytes", "shared_bytes")
    own = {name: getattr(report, name) for name in names}
    return own | report.accesses | report.products
