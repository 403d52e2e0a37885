"""The polling process, over NVML: ``python -m dsv4kv.measure.polling PID NS [UUID]``.

Writes JSON lines to standard output and ends with its standard input: also when the run dies. What
does not answer is absent, and it is said why.
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
    """Nanoseconds so far in which a limit held clocks down: no poll is needed to notice it."""
    return lambda nvml, gpu: int(
        nvml.nvmlDeviceGetViolationStatus(gpu, getattr(nvml, policy)).violationTime
    )


def _reasons(nvml: Any, gpu: Any) -> int:
    """Bits that say why clocks are not higher; older libraries call them throttle reasons."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except (AttributeError, nvml.NVMLError_FunctionNotFound):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


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
    "ecc_corrected": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC
    ),
    "ecc_uncorrected": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ),
}
"""Asked at every fifth poll; so are other processes and DRAM utilisation, which take more."""


class DramWitness:
    """DRAM bandwidth utilisation between one call and the next."""

    def __init__(self, nvml: Any, gpu: Any) -> None:
        """Begin; raises ``NVMLError`` where the GPU or driver has no such counters."""
        if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._nvml, self._gpu = nvml, gpu
        self._older, self._newer = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(gpu, self._newer)

    def percent(self) -> float:
        """Mean since the last call (or since the beginning), of the memory's full rate."""
        nvml = self._nvml
        self._older, self._newer = self._newer, self._older
        nvml.nvmlGpmSampleGet(self._gpu, self._newer)
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version, question.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        question.sample1, question.sample2 = self._older, self._newer
        question.metrics[0].metricId = nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        answer = nvml.nvmlGpmMetricsGet(question).metrics[0]
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
        return float(answer.value)


Answers = dict[str, int | float | str | None]

_PREFIXES = ("GPU-", "MIG-")
_FINAL = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",
)
_GONE = (
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_UNINITIALIZED",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_LIBRARY_NOT_FOUND",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
)


class GpuGone(Exception):
    """There is no such GPU, or no longer; the message says why."""


class NvmlGpu:
    """One GPU, by the UUID that CUDA knows it by: NVML numbers them otherwise than CUDA does."""

    def __init__(self, nvml: Any, uuid: str, own_pid: int) -> None:
        """Open the library (the module ``pynvml``) and find the GPU.

        Raises:
            GpuGone: No library, no driver, or no such GPU.
        """
        self.absent: dict[str, str] = {}  # what could not be read, and why
        self._nvml, self._own_pid = nvml, own_pid
        self._often, self._seldom = dict(OFTEN), dict(SELDOM)
        self._seldom["other_processes"] = self._count_others
        self._failures: Counter[str] = Counter()
        try:
            nvml.nvmlInit()
            self._gpu = self._find(uuid)
        except nvml.NVMLError as error:
            raise GpuGone(f"NVML: {error}") from None
        self._add_witness()

    def facts(self) -> Answers:
        """What does not change."""
        return self._ask(dict(FACTS))

    def often(self) -> Answers:
        """Clocks, limits, power and temperature.

        Raises:
            GpuGone: The GPU or its driver no longer answers.
        """
        return self._ask(self._often)

    def seldom(self) -> Answers:
        """Memory, other processes, errors and DRAM utilisation; raises as ``often`` does."""
        return self._ask(self._seldom)

    def _find(self, uuid: str) -> Any:
        bare = uuid.removeprefix(_PREFIXES[0]).removeprefix(_PREFIXES[1])
        for prefix in _PREFIXES:
            try:
                return self._nvml.nvmlDeviceGetHandleByUUID(prefix + bare)
            except (self._nvml.NVMLError_NotFound, self._nvml.NVMLError_InvalidArgument):
                continue
        raise GpuGone(f"NVML knows no GPU {uuid}")

    def _add_witness(self) -> None:
        try:
            witness = DramWitness(self._nvml, self._gpu)
        except (AttributeError, self._nvml.NVMLError) as error:
            self.absent["dram_percent"] = str(error)
        else:
            self._seldom["dram_percent"] = lambda _nvml, _gpu: witness.percent()

    def _ask(self, readers: dict[str, Reader]) -> Answers:
        """Answers by name; a reader that can never answer is taken out."""
        found: Answers = {}
        for name, read in list(readers.items()):
            try:
                found[name] = read(self._nvml, self._gpu)
            except (AttributeError, TypeError, ValueError, IndexError) as error:
                # functions and their answers change from version to version of the package
                self._drop(readers, name, f"this nvidia-ml-py answers otherwise ({error})")
            except self._nvml.NVMLError as error:
                if error.value in self._codes(_GONE):
                    raise GpuGone(f"NVML: {error}") from None
                if error.value in self._codes(_FINAL):
                    self._drop(readers, name, str(error))
                else:
                    self._failures[name] += 1
                    self.absent[name] = f"{error}, {self._failures[name]} times"
        return found

    def _drop(self, readers: dict[str, Reader], name: str, reason: str) -> None:
        del readers[name]
        self.absent[name] = reason

    def _codes(self, names: tuple[str, ...]) -> set[int]:
        return {getattr(self._nvml, name) for name in names}

    def _count_others(self, nvml: Any, gpu: Any) -> int | None:
        """Processes that compute there, this run apart; None where it does not see itself.

        In a container the driver reports process ids of the machine, which are not ours.
        """
        running = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
        if self._own_pid in running:
            return len(running) - 1
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
            "machine_busy_ns": _machine_busy_ns,
            "own_cpu_ns": self._own_cpu_ns,
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

    def _own_cpu_ns(self) -> int:
        times = psutil.Process(self._pid).cpu_times()
        busy_s: float = times.user + times.system
        return round(busy_s * 1e9)


def _machine_busy_ns() -> int:
    times = psutil.cpu_times()
    busy_s = sum(float(getattr(times, name, 0.0)) for name in _BUSY)
    return round(busy_s * 1e9)


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
