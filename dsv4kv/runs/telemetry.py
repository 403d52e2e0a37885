"""What the machine did during a case, in the record's terms.

Times are nanoseconds since polling began. A column has as many elements as its table has polls,
null where there was no answer; a column that never had one is null, and ``absent`` says why.
"""

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from dsv4kv.runs.part import Part, Temperature, check_columns

Integers = list[int | None] | None


class _Polled(Part):
    """A part that once had more fields: records of before load without them."""

    model_config = Part.model_config | ConfigDict(extra="ignore")


class Samples(_Polled):
    """Polls of one kind."""

    at_ns: list[int] = Field(description="When each was made.")

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        check_columns(self, type(self).model_fields)
        return self


class GpuSamples(Samples):
    """The GPU's state, 25 times a second."""

    sm_clock_mhz: Integers = Field(None, description="Clock of the multiprocessors.")
    memory_clock_mhz: Integers = Field(None, description="Clock of the memory.")
    reasons: Integers = None
    """Why clocks are not higher: the bits of NVML's clock event reasons."""
    power_mw: Integers = Field(None, description="Power at that instant.")
    temperature_c: Integers = Field(None, description="Temperature of the GPU.")


class GpuChecks(Samples):
    """What is asked of the GPU five times a second."""

    other_processes: Integers = Field(None, description="Other processes that compute on it.")


class HostSamples(Samples):
    """The host's state, five times a second."""

    cpu_mhz: Integers = Field(None, description="Clock of the CPU that the run was on.")
    machine_busy_ns: Integers = None
    """Processor time that all processes have used since the machine started."""
    own_cpu_ns: Integers = Field(None, description="Processor time that this run has used.")


class MeasuredWindow(_Polled):
    """When something was measured, and how."""

    name: str = Field(description="An operation, a peak, or ``serve``, ``memcpy``, ….")
    layer_type: str | None = Field(None, description="Of an operation.")
    temperature: Temperature | None = Field(None, description="Of an operation timed both ways.")
    started_ns: int = Field(description="Begin.")
    ended_ns: int = Field(description="End.")
    converged: bool | None = None
    """Whether the median was known to 0.5 % when sampling ended; null where nothing waited
    for that."""


class Telemetry(_Polled):
    """Polls of the machine during the measurement."""

    interval_ns: int = Field(gt=0, description="Between two polls.")
    windows: list[MeasuredWindow] = Field(description="What was measured when.")
    gpu_samples: GpuSamples | None = Field(None, description="The GPU's state.")
    gpu_checks: GpuChecks | None = Field(None, description="Who else uses the GPU.")
    host_samples: HostSamples | None = Field(None, description="The host's state.")
    absent: dict[str, str] = Field(description="What could not be read every time, and why.")
