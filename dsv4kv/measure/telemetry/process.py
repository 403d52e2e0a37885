"""The polling process: ``python -m dsv4kv.measure.telemetry.process PID INTERVAL_NS [UUID]``.

Writes JSON lines to standard output and ends with its standard input: also when the run dies.
"""

import json
import select
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from dsv4kv.measure.telemetry.nvml import GpuGone, NvmlGpu
from dsv4kv.measure.telemetry.readings import HostReader

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


def main(pid: int, interval_ns: int, uuid: str | None = None) -> None:
    """Poll the host that process ``pid`` is on, and the GPU that it uses."""
    poll(_open_gpu(uuid, pid), HostReader(pid), _write, _stopped, interval_ns)


def _open_gpu(uuid: str | None, pid: int) -> NvmlGpu | None:
    if uuid is None:
        return None
    try:
        import pynvml

        gpu = NvmlGpu(pynvml, uuid, pid)
        _write({"kind": "facts", "uuid": uuid, **gpu.facts()})
    except (ImportError, GpuGone) as error:
        _write({"kind": "absent", "gpu": str(error)})
        return None
    return gpu


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _stopped(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
