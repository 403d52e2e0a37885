"""The same copies timed by a GPU's events and by the host that waits for them."""

from time import perf_counter_ns

import torch

from dsv4kv.bench.device import CudaDevice
from dsv4kv.doctor.check import Check
from dsv4kv.doctor.timers import Clock, compare_device_clock

_BYTES = 1 << 28
_WORK_NS = 100_000_000


def check_device_clock(
    device: CudaDevice, size_bytes: int = _BYTES, clock_ns: Clock = perf_counter_ns
) -> Check:
    """Copy for a tenth of a second, between two events and between two looks at the clock."""
    source = torch.ones(size_bytes, dtype=torch.uint8, device=device.device)
    target = torch.empty_like(source)
    _time(device, source, target, 1, clock_ns)
    once_ns, _ = _time(device, source, target, 4, clock_ns)
    copies = max(4, min(10_000, round(4 * _WORK_NS / max(1, once_ns))))
    return compare_device_clock(*_time(device, source, target, copies, clock_ns))


def _time(
    device: CudaDevice, source: torch.Tensor, target: torch.Tensor, copies: int, clock_ns: Clock
) -> tuple[int, int]:
    """Nanoseconds of so many copies by the events and by the clock."""
    start, end = device.make_event(), device.make_event()
    started_ns = clock_ns()
    start.record()
    for _ in range(copies):
        target.copy_(source)
    end.record()
    end.synchronize()
    elapsed_ns = clock_ns() - started_ns
    return round(start.elapsed_time(end) * 1e6), elapsed_ns
