"""The polling process, over NVML: ``python -m dsv4kv.bench.polling PID NS [UUID]``.

Writes JSON lines to standard output and ends with its standard input: also when the run dies. What
does not answer is ``absent``, with the reason.
"""

import json
import os
import select
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import psutil

Reader = Callable[[Any, Any], int | float | str | None]
"""Asks the library (as the module ``pynvml``) about a device; raises its ``NVMLError``."""

_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _field(nvml: Any, gpu: Any, number: int) -> int:
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [number])
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(answer.nvmlReturn)
    return int(getattr(answer.value, _VALUE_TYPES[answer.valueType]))


def _violation(policy: str) -> Reader:
    """Nanoseconds so far in which a limit held clocks down, between two polls too."""
    return lambda nvml, gpu: int(
        nvml.nvmlDeviceGetViolationStatus(gpu, getattr(nvml, policy)).violationTime
    )


def _reasons(nvml: Any, gpu: Any) -> int:
    """Bits that say why clocks are not higher; older libraries call them throttle reasons."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except (AttributeError, nvml.NVMLError_FunctionNotFound):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def _ecc_errors(kind: str) -> Reader:
    return lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC
    )


FACTS: dict[str, Reader] = {
    "name": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "power_limit_mw": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
    "most_sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "most_memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(
        gpu, nvml.NVML_CLOCK_MEM
    ),
    "ecc": lambda nvml, gpu: nvml.nvmlDeviceGetEccMode(gpu)[0],
    "mig": lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu)[0],
    "persistence": lambda nvml, gpu: nvml.nvmlDeviceGetPersistenceMode(gpu),
}
"""Asked once."""

OFTEN: dict[str, Reader] = {
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "reasons": _reasons,
    "power_mw": lambda nvml, gpu: _field(nvml, gpu, nvml.NVML_FI_DEV_POWER_INSTANT),
    "energy_mj": lambda nvml, gpu: _field(nvml, gpu, nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION),
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(
        gpu, nvml.NVML_TEMPERATURE_GPU
    ),
    "power_violation_ns": _violation("NVML_PERF_POLICY_POWER"),
    "thermal_violation_ns": _violation("NVML_PERF_POLICY_THERMAL"),
    "board_violation_ns": _violation("NVML_PERF_POLICY_BOARD_LIMIT"),
    "reliability_violation_ns": _violation("NVML_PERF_POLICY_RELIABILITY"),
}
"""Asked at every poll."""

SELDOM: dict[str, Reader] = {
    "memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "pcie_generation": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "pcie_width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "pcie_replays": lambda nvml, gpu: nvml.nvmlDeviceGetPcieReplayCounter(gpu),
    "ecc_corrected": _ecc_errors("CORRECTED"),
    "ecc_uncorrected": _ecc_errors("UNCORRECTED"),
}
"""Asked at every fifth poll; so are other processes and DRAM utilisation, which take more."""


def _dram_percent(nvml: Any, gpu: Any) -> Reader:
    """Reads DRAM bandwidth utilisation since the last call; ``NVMLError`` without counters."""
    if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
    nvml.nvmlGpmSampleGet(gpu, samples[1])

    def read(nvml: Any, gpu: Any) -> float:
        samples.reverse()
        nvml.nvmlGpmSampleGet(gpu, samples[1])
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version, question.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        question.sample1, question.sample2 = samples
        question.metrics[0].metricId = nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        answer = nvml.nvmlGpmMetricsGet(question).metrics[0]
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
        return float(answer.value)

    return read


Answers = dict[str, int | float | str | None]

_PREFIXES = ("GPU-", "MIG-")
_FINAL = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT")
_GONE = (
    *("GPU_IS_LOST", "UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "RESET_REQUIRED"),
    "LIB_RM_VERSION_MISMATCH",
)


class GpuGone(Exception):
    """There is no such GPU, or no longer; the message says why."""


class NvmlGpu:
    """One GPU, by the UUID that CUDA knows it by: NVML numbers them otherwise than CUDA does."""

    def __init__(self, nvml: Any, uuid: str, own_pid: int) -> None:
        """Open the library (the module ``pynvml``); ``GpuGone`` without driver or such a GPU."""
        self.absent: dict[str, str] = {}  # what could not be read, and why
        self._nvml, self._own_pid = nvml, own_pid
        others = {"other_processes": self._count_others}
        self._readers = {"facts": {**FACTS}, "often": {**OFTEN}, "seldom": SELDOM | others}
        self._failures: Counter[str] = Counter()
        try:
            nvml.nvmlInit()
            self._gpu = self._find(uuid)
        except nvml.NVMLError as error:
            raise GpuGone(f"NVML: {error}") from None
        try:
            self._readers["seldom"]["dram_percent"] = _dram_percent(nvml, self._gpu)
        except (AttributeError, nvml.NVMLError) as error:
            self.absent["dram_percent"] = str(error)

    def ask(self, kind: str) -> Answers:
        """Answers by name of ``facts``, ``often`` or ``seldom``; raises ``GpuGone``."""
        found: Answers = {}
        readers = self._readers[kind]
        for name, read in list(readers.items()):
            try:
                found[name] = read(self._nvml, self._gpu)
            except (AttributeError, TypeError, ValueError, IndexError) as error:
                # functions and their answers change from version to version of the package
                self.absent[name] = f"this nvidia-ml-py answers otherwise ({error})"
                del readers[name]
            except self._nvml.NVMLError as error:
                if error.value in self._codes(_GONE):
                    raise GpuGone(f"NVML: {error}") from None
                self.absent[name] = str(error)
                if error.value in self._codes(_FINAL):
                    del readers[name]
                else:
                    self._failures[name] += 1
                    self.absent[name] = f"{error}, {self._failures[name]} times"
        return found

    def _find(self, uuid: str) -> Any:
        bare = uuid.removeprefix(_PREFIXES[0]).removeprefix(_PREFIXES[1])
        for prefix in _PREFIXES:
            try:
                return self._nvml.nvmlDeviceGetHandleByUUID(prefix + bare)
            except (self._nvml.NVMLError_NotFound, self._nvml.NVMLError_InvalidArgument):
                continue
        raise GpuGone(f"NVML knows no GPU {uuid}")

    def _codes(self, names: tuple[str, ...]) -> set[int]:
        return {getattr(self._nvml, f"NVML_ERROR_{name}") for name in names}

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
        """Read the clocks of CPUs below ``cpus``."""
        self.absent: dict[str, str] = {}  # what could not be read, and why
        self._pid, self._cpus = pid, cpus

    def read(self) -> dict[str, int | float]:
        """Load average, clock of the CPU that the process is on, and processor times so far."""
        readers: dict[str, Callable[[], int | float]] = {
            "load_1min": lambda: os.getloadavg()[0],
            "cpu_mhz": self._clock_mhz,
            "machine_busy_ns": lambda: _busy_ns(psutil.cpu_times()),
            "own_cpu_ns": lambda: _busy_ns(psutil.Process(self._pid).cpu_times()),
        }
        found: dict[str, int | float] = {}
        for name, read in readers.items():
            try:
                found[name] = read()
            except OSError as error:
                self.absent[name] = error.strerror or str(error)
            except (psutil.Error, RuntimeError, ValueError, TypeError, AttributeError) as error:
                self.absent[name] = getattr(error, "msg", "") or "not in the expected format"
        return found

    def _clock_mhz(self) -> int:
        # psutil reads the clock of every CPU, hundreds of files on a server at every poll
        cpu = psutil.Process(self._pid).cpu_num()
        return int((self._cpus / f"cpu{cpu}/cpufreq/scaling_cur_freq").read_text()) // 1000


def _busy_ns(times: Any) -> int:
    return round(sum(float(getattr(times, kind, 0.0)) for kind in _BUSY) * 1e9)


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
    gpu = None
    if uuid is not None:
        try:
            import pynvml

            gpu = NvmlGpu(pynvml, uuid, pid)
            _write({"kind": "facts", "uuid": uuid, **gpu.ask("facts")})
        except (ImportError, GpuGone) as error:
            _write({"kind": "absent", "gpu": str(error)})
            gpu = None
    poll(gpu, HostReader(pid), _write, _stopped, interval_ns)


def _write(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201


def _stopped(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
