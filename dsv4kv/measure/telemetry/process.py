"""The polling process: ``python -m dsv4kv.measure.telemetry.process PID INTERVAL_NS [UUID]``.

Writes JSON lines to standard output and ends with its standard input: also when the run dies.
"""

import json
import select
import sys
from typing import Any

from dsv4kv.measure.telemetry.host import HostReader
from dsv4kv.measure.telemetry.nvml import GpuGone, NvmlGpu
from dsv4kv.measure.telemetry.poll import poll


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
