"""What a GPU's memory gives at best: plain copying, reading and writing, in this process."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dsv4kv.bench.device import CudaDevice
from dsv4kv.bench.replay_timing import CallTimer
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.kernels.bandwidth import (
    THREADS,
    plan_copy_peak,
    plan_read_peak,
    plan_write_peak,
)
from dsv4kv.ops.kernels.launch import MOST_BLOCKS
from dsv4kv.report.record import Peak, PeakName

_CALLS = 4  # in one graph
_MOST_NS = 5_000_000_000  # of each: they are steady, and every row waits for them


def measure_peaks(
    device: CudaDevice, size_bytes: int, timer: CallTimer | None = None
) -> list[Peak]:
    """Copy, read and write ``size_bytes``; a copy reads and writes every byte.

    Torch's copy stands beside the one with our own accesses, and the faster is what others are
    held against. Buffers are filled with random bytes: zeros may be stored or moved in fewer.
    """
    timer = timer or CallTimer(device)
    source = torch.empty(size_bytes, dtype=torch.uint8, device=device.device).random_(0, 256)
    target = torch.empty_like(source)
    sums = torch.empty(MOST_BLOCKS * THREADS, dtype=torch.int32, device=device.device)
    calls: dict[PeakName, tuple[int, Callable[[], None]]] = {
        "copy": (2 * size_bytes, prepare(plan_copy_peak(source, target))),
        "torch_copy": (2 * size_bytes, partial(_copy, target, source)),
        "read": (size_bytes, prepare(plan_read_peak(source, sums))),
        "write": (size_bytes, prepare(plan_write_peak(target))),
    }
    peaks = []
    for name, (moved, call) in calls.items():
        timing = timer.measure([call] * _CALLS, name, most_ns=_MOST_NS)
        if timing.samples_ns:
            samples_ns, throttled = timing.samples_ns, timing.throttled
            peaks.append(Peak(name=name, bytes=moved, samples_ns=samples_ns, throttled=throttled))
    return peaks


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
