"""What a run holds its rates against: plain copies on the same machine, in the same run."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsv4kv.measure.statistics import Estimate, estimate_rate
from dsv4kv.record.schema import Case, GpuFacts
from dsv4kv.sizing.gpus import Gpu, gpu_names, load_gpu

COPIES = ("copy", "torch_copy")
"""Peaks that read and write as much: with our own accesses, and with torch's."""


@dataclass(frozen=True)
class Yardstick:
    """Plain memory traffic.

    Attributes:
        name: ``memcpy``, or on a GPU ``copy``, ``torch_copy``, ``read`` or ``write``.
        bytes: Bytes read plus bytes written by one call.
        samples_ns: Duration of every call.
        throttled: Calls left out, as the GPU was throttled during them.
    """

    name: str
    bytes: int
    samples_ns: Sequence[int]
    throttled: int = 0

    @property
    def rate(self) -> Estimate | None:
        """GB/s."""
        return estimate_rate([self.bytes] * len(self.samples_ns), self.samples_ns)


def yardsticks(case: Case) -> list[Yardstick]:
    """Those of a case; the first, the fastest copy, is the one that percentages are of."""
    if case.memcpy:
        return [Yardstick("memcpy", case.memcpy.bytes, case.memcpy.samples_ns)]
    found = [
        Yardstick(peak.name, peak.bytes, peak.samples_ns, peak.throttled) for peak in case.peaks
    ]
    return sorted(found, key=_order)


def _order(yardstick: Yardstick) -> tuple[bool, float]:
    is_copy, rate = yardstick.name in COPIES, yardstick.rate
    return not is_copy, -rate.value if rate and is_copy else 0.0


_MEMORY_WITHIN = 0.03  # a driver keeps a part of the memory, a product with more has 10 % more
_WORD = re.compile(r"[a-z0-9]+")
_SIZE = re.compile(r"\d+gb")
_SLOWER_MEMORY = "pcie"  # cards with the name and size of a module, and other memory


def datasheet_gbps(gpu: GpuFacts) -> int | None:
    """Memory bandwidth in GB/s; None rather than a guess."""
    return _on_datasheet(gpu, lambda known: known.bandwidth_gbps)


def datasheet_tflops(gpu: GpuFacts, *, fp8: bool) -> int | None:
    """Dense rate of the tensor cores in TFLOP/s, of FP8 or bf16; None rather than a guess."""
    return _on_datasheet(gpu, lambda known: known.fp8_tflops if fp8 else known.bf16_tflops)


def _on_datasheet(gpu: GpuFacts, read: Callable[[Gpu], int | None]) -> int | None:
    """What all GPUs of the catalogue say that this may be."""
    same = (known for known in map(load_gpu, gpu_names()) if _is_same(known, gpu))
    found = {figure for known in same if (figure := read(known))}
    return found.pop() if len(found) == 1 else None


def _is_same(known: Gpu, gpu: GpuFacts) -> bool:
    words = set(_WORD.findall(gpu.name.lower()))
    needed = {word for word in _WORD.findall(known.name) if not _SIZE.fullmatch(word)}
    if not needed <= words or _SLOWER_MEMORY in words:
        return False
    return abs(gpu.memory_bytes / known.memory_bytes - 1) < _MEMORY_WITHIN
