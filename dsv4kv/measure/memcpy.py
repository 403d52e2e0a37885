"""The yardstick: how fast this machine copies memory, in this process, on these threads."""

from time import perf_counter_ns

_FILL = 0x5A  # not zero: untouched zero pages share one physical page and copy too fast


def measure_memcpy(size_bytes: int, repeats: int = 10) -> list[int]:
    """Durations in ns of ``repeats`` copies of ``size_bytes`` bytes, after one untimed copy.

    A copy reads and writes every byte, so it moves ``2 * size_bytes``. It runs on the torch
    threads set by the caller.
    """
    import torch

    source = torch.full((size_bytes,), _FILL, dtype=torch.uint8)
    destination = torch.ones_like(source)
    destination.copy_(source)
    samples_ns = []
    for _ in range(repeats):
        start = perf_counter_ns()
        destination.copy_(source)
        samples_ns.append(perf_counter_ns() - start)
    return samples_ns
