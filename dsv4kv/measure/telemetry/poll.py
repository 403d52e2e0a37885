"""Polls at a steady pace until told to stop; every answer is a line, written at once."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from dsv4kv.measure.telemetry.host import HostReader
from dsv4kv.measure.telemetry.nvml import GpuGone, NvmlGpu

SELDOM_EVERY = 5  # polls

Write = Callable[[dict[str, Any]], None]
"""Takes a line: ``{"kind": "often", "at": ns, ...}``; also ``seldom``, ``host`` and ``absent``."""


def poll(
    gpu: NvmlGpu | None,
    host: HostReader,
    write: Write,
    stopped: Callable[[float], bool],
    interval_ns: int,
    clock_ns: Callable[[], int] = perf_counter_ns,
) -> None:
    """Poll until ``stopped(seconds)``, which waits so long, is true; then once more.

    The last poll closes what came before it: counters have a value before and after all of it.
    """
    due_ns, count, ended = clock_ns(), 0, False
    while True:
        seldom = ended or count % SELDOM_EVERY == 0
        gpu = _poll_gpu(gpu, write, clock_ns, seldom=seldom)
        if seldom:
            write({"kind": "host", "at": clock_ns(), **host.read()})
        if ended:
            break
        count += 1
        now_ns = clock_ns()
        late = -(-(now_ns - due_ns) // interval_ns)  # polls that came too late are left out
        due_ns += interval_ns * max(1, late)
        ended = stopped(max(0.0, (due_ns - now_ns) / 1e9))
    write({"kind": "absent", **host.absent, **(gpu.absent if gpu else {})})


def _poll_gpu(
    gpu: NvmlGpu | None, write: Write, clock_ns: Callable[[], int], *, seldom: bool
) -> NvmlGpu | None:
    """Ask a GPU; None once it no longer answers."""
    if gpu is None:
        return None
    try:
        write({"kind": "often", "at": clock_ns(), **gpu.often()})
        if seldom:
            write({"kind": "seldom", "at": clock_ns(), **gpu.seldom()})
    except GpuGone as gone:
        write({"kind": "absent", **gpu.absent, "gpu": f"{gone}, in the middle of the run"})
        return None
    return gpu
