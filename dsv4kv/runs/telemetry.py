"""What the machine did during a case, in the record's terms.

Times are nanoseconds since polling began. A column has as many elements as its table has polls,
null where there was no answer; a column that never had one is null, and ``absent`` says why.
"""

from typing import Self

from pydantic import Field, model_validator

from dsv4kv.runs.part import Part, Temperature

Integers = list[int | None] | None
Numbers = list[float | None] | None


class Samples(Part):
    """Polls of one kind."""

    at_ns: list[int] = Field(description="When each was made.")

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        for name in type(self).model_fields:
            column = getattr(self, name)
            if column is not None and len(column) != len(self.at_ns):
                raise ValueError(
                    f"{name} has {len(column)} values for {len(self.at_ns)} polls; they must be "
                    "as many"
                )
        return self


class GpuSamples(Samples):
    """The GPU's state, 25 times a second."""

    sm_clock_mhz: Integers = Field(None, description="Clock of the multiprocessors.")
    memory_clock_mhz: Integers = Field(None, description="Clock of the memory.")
    reasons: Integers = None
    """Why clocks are not higher: the bits of NVML's clock event reasons."""
    power_mw: Integers = Field(None, description="Power at that instant.")
    energy_mj: Integers = Field(None, description="Energy since the driver was loaded.")
    temperature_c: Integers = Field(None, description="Temperature of the GPU.")
    power_violation_ns: Integers = None
    """Time so far that power held clocks down."""
    thermal_violation_ns: Integers = Field(None, description="Time so far that heat did.")
    board_violation_ns: Integers = Field(None, description="Time so far that the board's did.")
    reliability_violation_ns: Integers = None
    """Time so far in which the reliability of the voltage did."""


class GpuChecks(Samples):
    """What is asked of the GPU five times a second."""

    memory_used_bytes: Integers = Field(None, description="Memory in use, by everybody.")
    pcie_generation: Integers = Field(None, description="Generation of the PCIe link.")
    pcie_width: Integers = Field(None, description="Lanes of the PCIe link.")
    pcie_replays: Integers = Field(None, description="Packets sent again so far.")
    ecc_corrected: Integers = Field(None, description="Memory errors corrected so far.")
    ecc_uncorrected: Integers = Field(None, description="Memory errors that could not be.")
    other_processes: Integers = Field(None, description="Other processes that compute on it.")
    dram_percent: Numbers = None
    """DRAM bandwidth in use since the poll before, of the full rate, by the GPU's counters."""


class GpuState(Part):
    """The GPU as NVML knows it."""

    uuid: str = Field(description="Its UUID, as CUDA names it.")
    name: str | None = Field(None, description="As the driver names it.")
    power_limit_mw: int | None = Field(None, description="Power limit in force.")
    most_sm_clock_mhz: int | None = Field(None, description="Max clock of the multiprocessors.")
    most_memory_clock_mhz: int | None = Field(None, description="Highest clock of the memory.")
    ecc: int | None = Field(None, description="1 with error correction.")
    mig: int | None = Field(None, description="1 where it is split (MIG).")
    persistence: int | None = Field(None, description="1 where the driver stays loaded.")


class HostSamples(Samples):
    """The host's state, five times a second."""

    load_1min: Numbers = Field(None, description="Load average.")
    cpu_mhz: Integers = Field(None, description="Clock of the CPU that the run was on.")
    machine_busy_ns: Integers = None
    """Processor time that all processes have used since the machine started."""
    own_cpu_ns: Integers = Field(None, description="Processor time that this run has used.")


class MeasuredWindow(Part):
    """When something was measured, and how."""

    name: str = Field(description="An operation, a peak, or ``serve``, ``memcpy``, ….")
    layer_type: str | None = Field(None, description="Of an operation.")
    temperature: Temperature | None = Field(None, description="Of an operation timed both ways.")
    started_ns: int = Field(description="Begin.")
    ended_ns: int = Field(description="End.")
    calls: int | None = Field(None, description="Calls of a sample; null as the workload had it.")
    warmup_ns: int | None = Field(None, description="Warm-up before it began.")
    converged: bool | None = None
    """Whether the median was known to 0.5 % when sampling ended; null where nothing waited
    for that."""


class Telemetry(Part):
    """Polls of the machine during the measurement."""

    interval_ns: int = Field(gt=0, description="Between two polls.")
    windows: list[MeasuredWindow] = Field(description="What was measured when.")
    gpu: GpuState | None = Field(None, description="The GPU; null without one that answers.")
    gpu_samples: GpuSamples | None = Field(None, description="Its state.")
    gpu_checks: GpuChecks | None = Field(None, description="Its state, what changes seldom.")
    host_samples: HostSamples | None = Field(None, description="The host's state.")
    memory_peak_bytes: int = Field(description="Most memory the process has had resident so far.")
    empty_graph_ns: list[int] | None = None
    """Durations of a graph without work between two events: the least that a replay takes."""
    absent: dict[str, str] = Field(description="What could not be read every time, and why.")


class HeldUnits(Part):
    """Something that requests take and give back, at every moment of the series."""

    name: str
    """``blocks`` (``csa blocks``, … with several tables), ``slots``, and where prefixes are
    shared ``cached blocks``, blocks that the prefix index keeps, and
    ``checkpoints``."""
    units: int = Field(description="How many there are; the others are free.")
    held: list[int] = Field(description="How many were held.")


class HeldPool(Part):
    """A pool of the cache, filled as far as its units are held."""

    name: str
    """``main``, ``indexer``, ``window``, ``state``, ``checkpoints``."""
    layer_type: str = Field(description="Attention type of its layers, or ``all``.")
    unit: str = Field(description="Name of the units it is counted in.")
    unit_bytes: int = Field(description="Bytes of one unit, all its layers together.")


class MemorySeries(Part):
    """What was held while the workload was served.

    A point stands for ``stride_steps`` steps: it is the one of them with most blocks held, when
    drafts were taken back and requests that ended had not yet given theirs. So the most that was
    held after any step is among the points.
    """

    stride_steps: int = Field(description="Steps that a point stands for.")
    at_ns: list[int]
    """When, from the first step on, without checks; the first is 0 unless a later step of its
    stretch was fuller."""
    units: list[HeldUnits] = Field(description="What was held.")
    pools: list[HeldPool]
    """Its pools and bytes; block tables, which are always whole, are not listed."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        lengths = {each.name: len(each.held) for each in self.units}
        if set(lengths.values()) - {len(self.at_ns)}:
            raise ValueError(f"{len(self.at_ns)} moments and series of {lengths}")
        if unknown := {pool.unit for pool in self.pools} - set(lengths):
            raise ValueError(f"pools are counted in {', '.join(sorted(unknown))}, which is absent")
        return self
