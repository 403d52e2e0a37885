"""A GPU's state through NVML. What does not answer is absent, and it is said why."""

from collections import Counter
from typing import Any

from dsv4kv.measure.telemetry.dram import DramWitness
from dsv4kv.measure.telemetry.nvml_readers import FACTS, OFTEN, SELDOM, Reader

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
    """One GPU, by the UUID that CUDA knows it by: NVML numbers them otherwise than CUDA does.

    Attributes:
        absent: What could not be read, or not every time, and why.
    """

    def __init__(self, nvml: Any, uuid: str, own_pid: int) -> None:
        """Open the library (the module ``pynvml``) and find the GPU.

        Raises:
            GpuGone: No library, no driver, or no such GPU.
        """
        self.absent: dict[str, str] = {}
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
                self._refused(readers, name, error)
        return found

    def _refused(self, readers: dict[str, Reader], name: str, error: Any) -> None:
        if error.value in self._codes(_GONE):
            raise GpuGone(f"NVML: {error}")
        if error.value in self._codes(_FINAL):
            self._drop(readers, name, str(error))
            return
        self._failures[name] += 1
        self.absent[name] = f"{error}, {self._failures[name]} times"

    def _drop(self, readers: dict[str, Reader], name: str, reason: str) -> None:
        del readers[name]
        self.absent[name] = reason

    def _codes(self, names: tuple[str, ...]) -> set[int]:
        return {getattr(self._nvml, name) for name in names}

    def _count_others(self, nvml: Any, gpu: Any) -> int | None:
        """Processes that compute there beside this run; None where it does not see itself.

        In a container the driver tells process ids of the machine, which are not ours.
        """
        running = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
        if self._own_pid in running:
            return len(running) - 1
        self.absent["other_processes"] = "the driver does not show this run by its own process id"
        return None
