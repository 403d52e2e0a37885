"""The yardstick: how fast this machine copies memory, in this process, on these threads.

A copy reads and writes every byte, so it moves twice its size. It runs on the torch threads set
by the caller.
"""

from collections.abc import Callable
from time import perf_counter_ns

from dsv4kv.measure.protocol import Rules, Timing, time_calls

_FILL = 0x5A  # not zero: untouched zero pages share one physical page and copy too fast


def measure_memcpy(size_bytes: int, repeats: int = 10) -> list[int]:
    """Durations in ns of ``repeats`` copies of ``size_bytes`` bytes, after one untimed copy."""
    copy = _prepare(size_bytes)
    copy()
    samples_ns = []
    for _ in range(repeats):
        start = perf_counter_ns()
        copy()
        samples_ns.append(perf_counter_ns() - start)
    return samples_ns


def time_memcpy(size_bytes: int, rules: Rules | None = None) -> Timing:
    """Copies of ``size_bytes`` bytes by the protocol, as a calibration takes them: seconds."""
    return time_calls(_prepare(size_bytes), rules)


def _prepare(size_bytes: int) -> Callable[[], None]:
    import torch

    source = torch.full((size_bytes,), _FILL, dtype=torch.uint8)
    destination = torch.ones_like(source)

    def copy() -> None:
        destination.copy_(source)

    return copy
