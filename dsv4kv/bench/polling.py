"""The polling process, over NVML: ``python -m dsv4kv.bench.polling PID NS [UUID]``.

Writes JSON lines to standard output and ends with its standard input: also when the run dies. What
does not answer is ``absent``, with the reason.
"""

import json
import select
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import psutil


def _power(nvml: Any, gpu: Any) -> int:
    """Power at this instant; ``nvmlDeviceGetPowerUsage`` is a mean over a second."""
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_POWER_INSTANT])
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def _reasons(nvml: Any, gpu: Any) -> int:
    """Bits that say why clocks are not higher; older drivers call them throttle reasons."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except nvml.NVMLError_FunctionNotFound:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


Reader = Callable[[Any, Any], int | None]
"""Asks the library (as the module ``pynvml``) about a device."""

OFTEN: dict[str, Reader] = {
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "reasons": _reasons,
    "power_mw": _power,
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(
        gpu, nvml.NVML_TEMPERATURE_GPU
    ),
}
"""Asked at every poll."""

Answers = dict[str, int | None]

_PREFIXES = ("GPU-", "MIG-")
_GONE = (
    *("GPU_IS_LOST", "UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "RESET_REQUIRED"),
    "LIB_RM_VERSION_MISMATCH",
)


class GpuGone(Exception):
    """There is no such GPU, or no longer; the message says why."""


def _ask(readers: Mapping[str, Callable[[], int | None]], absent: dict[str, str]) -> Answers:
    """Answers by name; what does not answer is ``absent``, with the reason."""
    found: Answers = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except GpuGone:
            raise
        except Exception as error:  # functions and their answers change between versions
            absent[name] = getattr(error, "strerror", "") or str(error) or type(error).__name__
    return found


class NvmlGpu:
    """One GPU, by the UUID that CUDA knows it by: NVML numbers them otherwise than CUDA does."""

    def __init__(self, nvml: Any, uuid: str, own_pid: int) -> None:
        """Open the library (the module ``pynvml``); ``GpuGone`` without driver or such a GPU."""
        self.absent: dict[str, str] = {}  # what could not be read, and why
        self._nvml, self._own_pid = nvml, own_pid
        others: dict[str, Reader] = {"other_processes": self._count_others}
        self._readers = {"often": OFTEN, "seldom": others}
        try:
            nvml.nvmlInit()
            self._gpu = self._find(uuid)
        except nvml.NVMLError as error:
            raise GpuGone(f"NVML: {error}") from None

    def ask(self, kind: str) -> Answers:
        """Answers by name, of ``often`` or ``seldom``; raises ``GpuGone``."""
        readers = self._readers[kind]
        return _ask(
            {name: partial(self._read, each) for name, each in readers.items()}, self.absent
        )

    def _read(self, read: Reader) -> int | None:
        try:
            return read(self._nvml, self._gpu)
        except self._nvml.NVMLError as error:
            if error.value in {getattr(self._nvml, f"NVML_ERROR_{each}") for each in _GONE}:
                raise GpuGone(f"NVML: {error}") from None
            raise

    def _find(self, uuid: str) -> Any:
        bare = uuid.removeprefix(_PREFIXES[0]).removeprefix(_PREFIXES[1])
        for prefix in _PREFIXES:
            try:
                return self._nvml.nvmlDeviceGetHandleByUUID(prefix + bare)
            except (self._nvml.NVMLError_NotFound, self._nvml.NVMLError_InvalidArgument):
                continue
        raise GpuGone(f"NVML knows no GPU {uuid}")

    def _count_others(self, nvml: Any, gpu: Any) -> int | None:
        running = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
        if self._own_pid in running:
            return len(running) - 1
        # in a container the driver reports process ids of the machine, which are not ours
        self.absent["other_processes"] = "the driver does not show this run by its own process id"
        return None


_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # where a system has them


class HostReader:
    """Reads a machine's state while process ``pid`` is measured on it."""

    def __init__(self, pid: int, cpus: Path = Path("/sys/devices/system/cpu")) -> None:
        self.absent: dict[str, str] = {}  # what could not be read, and why
        self._pid, self._cpus = pid, cpus

    def read(self) -> Answers:
        """Clock of the CPU that the process is on, and processor times so far."""
        readers: dict[str, Callable[[], int]] = {
            "cpu_mhz": self._clock_mhz,
            "machine_busy_ns": lambda: _busy_ns(psutil.cpu_times()),
            "own_cpu_ns": lambda: _busy_ns(psutil.Process(self._pid).cpu_times()),
        }
        return _ask(readers, self.absent)

    def _clock_mhz(self) -> int:
        # psutil reads the clock of every CPU, hundreds of files on a server at every poll
        cpu = psutil.Process(self._pid).cpu_num()
        return int((self._cpus / f"cpu{cpu}/cpufreq/scaling_cur_freq").read_text()) // 1000


def _busy_ns(times: Any) -> int:
    return round(sum(float(getattr(times, kind, 0.0)) for kind in _BUSY) * 1e9)


SELDOM_EVERY = 5  # polls: the host, and what takes the driver longer

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
        if gpu is not None:
            try:
                for kind in ("often", "seldom") if seldom else ("often",):
                    write({"kind": kind, "at": clock_ns(), **gpu.ask(kind)})
            except GpuGone as gone:
                write({"kind": "absent", **gpu.absent, "gpu": f"{gone}, in the middle of the run"})
                gpu = None
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


def main(pid: int, interval_ns: int, uuid: str | None = None) -> None:
    """Poll the host that process ``pid`` is on, and the GPU that it uses."""

    def write(line: dict[str, Any]) -> None:
        print(json.dumps(line), flush=True)  # noqa: T201

    def stopped(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    gpu = None
    if uuid is not None:
        try:
            import pynvml

            gpu = NvmlGpu(pynvml, uuid, pid)
        except (ImportError, GpuGone) as error:
            write({"kind": "absent", "gpu": str(error)})
    poll(gpu, HostReader(pid), write, stopped, interval_ns)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
