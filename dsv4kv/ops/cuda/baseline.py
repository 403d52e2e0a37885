"""The machine code as it was: registers, instructions and accesses of every kernel, in a file.

Compared only with the compiler that made it: another version makes other code of the same source,
so each version that is looked after has a file of its own, ``nvrtc-13.5.json``.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsv4kv.errors import RecordError
from dsv4kv.files import replacing
from dsv4kv.ops.cuda.survey import Finding
from dsv4kv.reading import read_json
from dsv4kv.resources import shipped

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
        path.parent.mkdir(parents=True, exist_ok=True)
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
            f"{path} is no baseline ({type(error).__name__}: {error}): write it anew with "
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
    }


def _changes(before: Numbers, after: Numbers) -> str:
    keys = dict.fromkeys([*before, *after])
    return ", ".join(
        f"{key} {before.get(key, 0)} → {after.get(key, 0)}"
        for key in keys
        if before.get(key, 0) != after.get(key, 0)
    )
