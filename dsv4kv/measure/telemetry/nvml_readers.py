"""What is asked of NVML, by the name it has in the record: one literal table for each cadence."""

from collections.abc import Callable
from typing import Any

Reader = Callable[[Any, Any], int | float | str | None]
"""Asks the library (as the module ``pynvml``) about a device; raises its ``NVMLError``."""

_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _call(function: str, *constants: str) -> Reader:
    """The value of a function that takes the device and constants, named as in the library."""
    return lambda nvml, gpu: getattr(nvml, function)(
        gpu, *(getattr(nvml, constant) for constant in constants)
    )


def _attribute(function: str, attribute: str, *constants: str) -> Reader:
    """One attribute of what such a function returns."""
    ask = _call(function, *constants)
    return lambda nvml, gpu: getattr(ask(nvml, gpu), attribute)


def _field(constant: str) -> Reader:
    """A field value, of whichever type it is."""

    def read(nvml: Any, gpu: Any) -> int:
        (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [getattr(nvml, constant)])
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(answer.nvmlReturn)
        return int(getattr(answer.value, _VALUE_TYPES[answer.valueType]))

    return read


def _violation(policy: str) -> Reader:
    """Nanoseconds so far in which a limit held clocks down: no poll is needed to notice it."""
    return _attribute(
        "nvmlDeviceGetViolationStatus", "violationTime", f"NVML_PERF_POLICY_{policy}"
    )


def _reasons(nvml: Any, gpu: Any) -> int:
    """Bits that say why clocks are not higher; older libraries call them throttle reasons."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except (AttributeError, nvml.NVMLError_FunctionNotFound):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def _ecc(kind: str) -> Reader:
    counter = f"NVML_MEMORY_ERROR_TYPE_{kind}"
    return _call("nvmlDeviceGetTotalEccErrors", counter, "NVML_VOLATILE_ECC")


FACTS: dict[str, Reader] = {
    "name": _call("nvmlDeviceGetName"),
    "power_limit_mw": _call("nvmlDeviceGetEnforcedPowerLimit"),
    "most_sm_clock_mhz": _call("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
    "most_memory_clock_mhz": _call("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM"),
    "ecc": lambda nvml, gpu: nvml.nvmlDeviceGetEccMode(gpu)[0],
    "mig": lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu)[0],
    "persistence": _call("nvmlDeviceGetPersistenceMode"),
}
"""Asked once."""

OFTEN: dict[str, Reader] = {
    "sm_clock_mhz": _call("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    "memory_clock_mhz": _call("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
    "reasons": _reasons,
    "power_mw": _field("NVML_FI_DEV_POWER_INSTANT"),
    "energy_mj": _field("NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    "temperature_c": _call("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    "power_violation_ns": _violation("POWER"),
    "thermal_violation_ns": _violation("THERMAL"),
    "board_violation_ns": _violation("BOARD_LIMIT"),
    "reliability_violation_ns": _violation("RELIABILITY"),
}
"""Asked at every poll."""

SELDOM: dict[str, Reader] = {
    "memory_used_bytes": _attribute("nvmlDeviceGetMemoryInfo", "used"),
    "pcie_generation": _call("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_width": _call("nvmlDeviceGetCurrPcieLinkWidth"),
    "pcie_replays": _call("nvmlDeviceGetPcieReplayCounter"),
    "ecc_corrected": _ecc("CORRECTED"),
    "ecc_uncorrected": _ecc("UNCORRECTED"),
}
"""Asked at every fifth poll; so are other processes and DRAM utilisation, which take more."""
