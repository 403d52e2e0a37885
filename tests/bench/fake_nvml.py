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
POWER = ("uiVal", 1, 512_000)


@dataclass
class FakeNvml:
    """One GPU; tests change its answers while it is polled."""

    answers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Replaces the answer of a function, by name; called with the arguments."""
    lacking: set[str] = field(default_factory=set)
    """Functions that this version of the Python package does not have."""
    calls: list[str] = field(default_factory=list)  # names of the functions called
    clocks: dict[int, int] = field(default_factory=lambda: dict(CLOCKS))
    reasons: int = 0
    pids: list[int] = field(default_factory=lambda: [OWN_PID])
    gone: bool = False

    def __getattr__(self, name: str) -> Any:
        if not (name.startswith("nvml") and callable(getattr(pynvml, name, None))):
            return getattr(pynvml, name)  # constants, structures and errors
        if name in self.lacking:
            raise AttributeError(f"module 'pynvml' has no attribute '{name}'")
        answer = (self._usual() | self.answers).get(name)
        if answer is None:
            return refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if self.gone:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return answer(*arguments)

        return call

    def _usual(self) -> dict[str, Callable[..., Any]]:
        """What the GPU answers where no test says otherwise; all else is not supported."""
        return {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": _find,
            "nvmlDeviceGetClockInfo": lambda _, kind: self.clocks[kind],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self.reasons,
            "nvmlDeviceGetTemperature": lambda *_: 61,
            "nvmlDeviceGetFieldValues": lambda _, ids: [field_value(*POWER) for _each in ids],
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=pid) for pid in self.pids
            ],
        }


def _find(uuid: str) -> str:
    if uuid == UUID:
        return "handle"
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


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
