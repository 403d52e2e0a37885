"""What a GPU's datasheet promises, where the catalogue surely has that GPU."""

import re

from dsv4kv.report.record import GpuFacts
from dsv4kv.sizing.gpus import Gpu, gpu_names, load_gpu

_MEMORY_WITHIN = 0.03  # a driver keeps a part of the memory, a product with more has 10 % more
_WORD = re.compile(r"[a-z0-9]+")
_SIZE = re.compile(r"\d+gb")
_SLOWER_MEMORY = "pcie"  # cards with the name and size of a module, and other memory


def datasheet_gbps(gpu: GpuFacts) -> int | None:
    """Memory bandwidth in GB/s; None rather than a guess."""
    found = {
        known.bandwidth_gbps
        for known in map(load_gpu, gpu_names())
        if known.bandwidth_gbps and _is_same(known, gpu)
    }
    return found.pop() if len(found) == 1 else None


def _is_same(known: Gpu, gpu: GpuFacts) -> bool:
    told = set(_WORD.findall(gpu.name.lower()))
    needed = {word for word in _WORD.findall(known.name) if not _SIZE.fullmatch(word)}
    if not needed <= told or _SLOWER_MEMORY in told:
        return False
    return abs(gpu.memory_bytes / known.memory_bytes - 1) < _MEMORY_WITHIN
