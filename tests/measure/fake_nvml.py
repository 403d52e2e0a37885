"""A library that answers, refuses, lacks functions, or disappears: stands for ``pynvml``.

Constants, structures and errors are the real module's, which needs no driver for them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_UUID = "GPU-99999999-2222-3333-4444-555555555555"
OWN_PID = 4321

CLOCKS = {pynvml.NVML_CLOCK_SM: 1_980, pynvml.NVML_CLOCK_MEM: 3_201}
FIELDS = {
    pynvml.NVML_FI_DEV_POWER_INSTANT: ("uiVal", 1, 512_000),
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: ("ullVal", 3, 7_000_000_000_000),
}


@dataclass
class FakeNvml:
    """One GPU; tests change its answers while it is polled.

    Attributes:
        answers: Replaces the answer of a function, by name; called with the arguments.
        lacking: Functions that this version of the Python package does not have.
        calls: Names of the functions called.
    """

    answers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    clocks: dict[int, int] = field(default_factory=lambda: dict(CLOCKS))
    reasons: int = 0
    violation_ns: dict[int, int] = field(default_factory=dict)
    pids: list[int] = field(default_factory=lambda: [OWN_PID])
    dram_percent: float = 87.5
    gone: bool = False

    def __getattr__(self, name: str) -> Any:
        if not (name.startswith("nvml") and callable(getattr(pynvml, name, None))):
            return getattr(pynvml, name)  # constants, structures and errors
        if name in self.lacking:
            raise AttributeError(f"module 'pynvml' has no attribute '{name}'")
        answer = self.answers.get(name) or getattr(self, f"_{name}", None)
        if answer is None:
            return refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if self.gone:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return answer(*arguments)

        return call

    def _nvmlInit(self) -> None:  # noqa: N802
        pass

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid == UUID:
            return "handle"
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetName(self, _gpu: Any) -> str:  # noqa: N802
        return "NVIDIA H200"

    def _nvmlDeviceGetEccMode(self, _gpu: Any) -> list[int]:  # noqa: N802
        return [1, 1]

    def _nvmlDeviceGetEnforcedPowerLimit(self, _gpu: Any) -> int:  # noqa: N802
        return 700_000

    def _nvmlDeviceGetMaxClockInfo(self, _gpu: Any, kind: int) -> int:  # noqa: N802
        return CLOCKS[kind]

    def _nvmlDeviceGetClockInfo(self, _gpu: Any, kind: int) -> int:  # noqa: N802
        return self.clocks[kind]

    def _nvmlDeviceGetCurrentClocksEventReasons(self, _gpu: Any) -> int:  # noqa: N802
        return self.reasons

    def _nvmlDeviceGetTemperature(self, _gpu: Any, _sensor: int) -> int:  # noqa: N802
        return 61

    def _nvmlDeviceGetFieldValues(self, _gpu: Any, ids: list[int]) -> list[Any]:  # noqa: N802
        return [field_value(*FIELDS[each]) for each in ids]

    def _nvmlDeviceGetViolationStatus(self, _gpu: Any, policy: int) -> Any:  # noqa: N802
        return SimpleNamespace(referenceTime=0, violationTime=self.violation_ns.get(policy, 0))

    def _nvmlDeviceGetMemoryInfo(self, _gpu: Any) -> Any:  # noqa: N802
        return SimpleNamespace(total=141 << 30, used=12 << 30)

    def _nvmlDeviceGetTotalEccErrors(self, _gpu: Any, kind: int, _counter: int) -> int:  # noqa: N802
        return 3 if kind == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED else 0

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, _gpu: Any) -> int:  # noqa: N802
        return 5

    def _nvmlDeviceGetCurrPcieLinkWidth(self, _gpu: Any) -> int:  # noqa: N802
        return 16

    def _nvmlDeviceGetComputeRunningProcesses(self, _gpu: Any) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def _nvmlGpmQueryDeviceSupport(self, _gpu: Any) -> Any:  # noqa: N802
        return SimpleNamespace(isSupportedDevice=1)

    def _nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        return pynvml.c_nvmlGpmSample_t()

    def _nvmlGpmSampleGet(self, _gpu: Any, sample: Any) -> Any:  # noqa: N802
        return sample

    def _nvmlGpmMetricsGet(self, question: Any) -> Any:  # noqa: N802
        assert question.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        assert (question.numMetrics, question.metrics[0].metricId) == (
            1,
            pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        )
        question.metrics[0].value = self.dram_percent
        return question


def field_value(union_member: str, value_type: int, value: int) -> Any:
    """What ``nvmlDeviceGetFieldValues`` gives for one field."""
    answer = pynvml.c_nvmlFieldValue_t()
    answer.nvmlReturn, answer.valueType = pynvml.NVML_SUCCESS, value_type
    setattr(answer.value, union_member, value)
    return answer


def refuse(code: int) -> Callable[..., Any]:
    """A function that fails."""

    def fail(*_: Any) -> Any:
        raise pynvml.NVMLError(code)

    return fail
