"""Parts of the run record: what a profiler, a poller of the machine, and a replay fill in.

Times are integer nanoseconds, of telemetry since polling began, of a replay virtual: what a clock
says since the first arrival. Sizes are bytes. Tables of many rows are kept as columns, lists of
one length.
"""

from collections import Counter
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, Field, model_validator

from dsv4kv.config.bench import Section


def _check_moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text} has no time zone: {text}Z would be UTC")
    return text


Moment = Annotated[str, AfterValidator(_check_moment)]
"""A time as ISO 8601 with its zone, which can be compared with any other."""

RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""Unique name of a run, which is the name of its file without an ending."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of things or bytes."""

Nanoseconds = Count
"""A duration."""

Temperature = Literal["cold", "hot", "L2-resident"]
"""How an operation was timed, see ``Operation.temperature``."""


class Part(BaseModel):
    """A part of the record: frozen, documented by its attribute docstrings.

    Parts with ``extra="ignore"`` once had more fields: records of before load without them.
    """

    model_config = Section.model_config


class Columns(Part):
    """A table as columns, those that are there of one length."""

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        columns = {name: getattr(self, name) for name in type(self).model_fields}
        found = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(found.values())) > 1:
            lengths = ", ".join(f"{name} {length:,}" for name, length in found.items())
            raise ValueError(f"columns differ in length: {lengths}")
        return self


Integers = list[int | None] | None
"""A column with an element for every poll of its table, null where there was no answer; null where
there never was one, and ``Telemetry.absent`` says why."""


class Samples(Columns, extra="ignore"):
    """Polls of one kind."""

    at_ns: list[int] = Field(description="When each was made.")


class GpuSamples(Samples):
    """The GPU's state, 25 times a second."""

    sm_clock_mhz: Integers = Field(None, description="Clock of the multiprocessors.")
    memory_clock_mhz: Integers = Field(None, description="Clock of the memory.")
    reasons: Integers = Field(None, description="Limits of clocks: NVML's clock event reasons.")
    power_mw: Integers = Field(None, description="Power at that instant.")
    temperature_c: Integers = Field(None, description="Temperature of the GPU.")


class GpuChecks(Samples):
    """What is asked of the GPU five times a second."""

    other_processes: Integers = Field(None, description="Other processes that compute on it.")


class HostSamples(Samples):
    """The host's state, five times a second."""

    cpu_mhz: Integers = Field(None, description="Clock of the CPU that the run was on.")
    machine_busy_ns: Integers = Field(None, description="CPU time of all processes since boot.")
    own_cpu_ns: Integers = Field(None, description="Processor time that this run has used.")


class MeasuredWindow(Part, extra="ignore"):
    """When something was measured, and how."""

    name: str = Field(description="An operation, a peak, or ``serve``, ``memcpy``, ….")
    layer_type: str | None = Field(None, description="Of an operation.")
    temperature: Temperature | None = Field(None, description="Of an operation timed both ways.")
    started_ns: int = Field(description="Begin.")
    ended_ns: int = Field(description="End.")
    converged: bool | None = None
    """Whether the median was known to 0.5 % when sampling ended; null where nothing waited
    for that."""


class Telemetry(Part, extra="ignore"):
    """Polls of the machine during the measurement."""

    interval_ns: int = Field(gt=0, description="Between two polls.")
    windows: list[MeasuredWindow] = Field(description="What was measured when.")
    gpu_samples: GpuSamples | None = Field(None, description="The GPU's state.")
    gpu_checks: GpuChecks | None = Field(None, description="Who else uses the GPU.")
    host_samples: HostSamples | None = Field(None, description="The host's state.")
    absent: dict[str, str] = Field(description="What could not be read every time, and why.")


Category = Literal["insert", "gather", "compress", "indexer", "attention", "other"]
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
CACHE_CATEGORIES: Final[tuple[Category, ...]] = CATEGORIES[:4]
"""Those that are work on the cache: attention reads it, but would be there without."""
OTHER: Final[Category] = "other"


class KernelRow(Part, extra="ignore"):
    """All calls of one kernel in the steps, or in the whole profile where there are no steps."""

    name: str = Field(description="Full name.")
    kind: Literal["kernel", "memcpy", "memset", "graph", "op", "range"]
    """``graph``: a graph traced as a whole; on a CPU ``op`` (of torch) and ``range`` (marked)."""
    category: Category = Field(description="What it does to a KV cache, by ``configs/profile/``.")
    engine: str | None = Field(description="Whose rule says so; null where none fits.")
    operation: str | None = Field(description="Operation of the toolkit that it belongs to.")
    phase: str | None = Field(description="Innermost range that launched most of its calls.")
    calls: int = Field(description="How often it ran.")
    total_ns: int = Field(description="Its time; on a CPU without what is inside it.")
    median_ns: int = Field(description="Median of a call.")
    min_ns: int = Field(description="Shortest call.")
    gap_ns: int | None = Field(description="Median idle time before it, within a step.")
    useful_bytes: int | None = Field(description="By the byte model, where it is an operation.")
    counted_bytes: int | None = Field(description="Counted bytes: of a copy, or in DRAM (ncu).")


class OperationRow(Part):
    """An operation of the toolkit: all its kernels, or its marked range on a CPU."""

    name: str = Field(description="Operation, as in ``dsv4kv.ops``; on a CPU with the layer type.")
    category: Category = Field(description="What it does to a KV cache.")
    calls: int = Field(description="How often it ran (its most frequent kernel did).")
    total_ns: int = Field(description="All of its time.")
    useful_bytes: int | None = Field(description="Bytes it must move by the byte model.")
    dram_bytes: int | None = Field(description="Bytes moved in DRAM, as ncu counted them.")


class StepTimes(Columns, extra="ignore"):
    """One row for each step on each GPU, or for each step on a CPU."""

    device: list[int] = Field(description="GPU; 0 on a CPU.")
    host_ns: list[int] = Field(description="Host: begin to end of the marked range.")
    span_ns: list[int] = Field(description="GPU: first begin to last end; CPU: the host's.")
    busy_ns: list[int] = Field(description="GPU: time with any work; CPU: in torch operations.")
    gap_ns: list[int] = Field(description="GPU: span less busy; CPU: outside operations.")
    launch_ns: list[int] = Field(description="Host calls that launched it; CPU: outside torch.")
    inputs_ns: list[int] = Field(description="CPU: for synthetic inputs, in none of the others.")

    @model_validator(mode="after")
    def _has_steps(self) -> Self:
        if not self.device:
            raise ValueError("there are no steps: null says so")
        return self


class KernelTable(Part):
    """A profile, whichever profiler it is from."""

    tool: Literal["nsys", "ncu", "kineto"] = Field(description="Profiler; ``kineto`` is torch's.")
    tool_version: str | None = Field(description="Version of the profiler or of its file format.")
    devices: list[str] = Field(description="Names of the GPUs that worked.")
    kernels: list[KernelRow] = Field(description="Kernels, copies, operations; longest first.")
    operations: list[OperationRow] = Field(description="The toolkit's; empty in others' profiles.")
    num_steps: int = Field(description="Steps; 0 where the profile has none.")
    steps: StepTimes | None = Field(description="Their times; null without steps.")
    timeline: dict[str, Any] | None = Field(None, description="In older records: one whole step.")
    outside_calls: int = Field(description="Pieces outside all steps, in none of the tables.")
    outside_ns: int = Field(description="Their time.")
    warnings: list[str] = Field(description="What spoils the numbers, worst first.")
    notes: list[str] = Field(description="What else to know.")


class Profile(Part):
    """What was profiled, how, and what was found."""

    why: str = Field(description="Which profiler, and why this one.")
    command: list[str] = Field(description="The profiler's; empty inside the process.")
    files: list[str] = Field(description="What the profiler wrote.")
    step_requests: list[int] = Field(description="Of every profiled step; empty for others'.")
    useful_bytes: dict[str, int] = Field(description="Of all profiled steps, by the byte model.")
    table: KernelTable | None = Field(description="What was found; null while it is not read yet.")
    memory: dict[str, Any] | None = None
    """Only in older records: memory around the building of the pools."""


class FleetReplica(Part):
    """One server."""

    name: str = Field(description="What it does, and which it is.")
    role: Literal["both", "prefill", "decode"] = Field(description="What it computes.")
    gpus: int = Field(description="GPUs that it has.")
    requests: int = Field(description="Requests that it was given.")
    prompt_tokens: int = Field(description="Of their prompts; of a decode replica, what was sent.")
    saved_tokens: int = Field(description="Prompt tokens found cached; 0 for a decode replica.")
    computed_tokens: int = Field(description="Computed prompt tokens, repeats included.")
    output_tokens: int = Field(description="Of answers; what prefill samples last is none.")
    peak_requests: int = Field(description="Max requests that held a slot.")
    busy_ns: int = Field(description="Time in which it had steps to take.")
    queued_ns: int = Field(description="Time that its requests waited for a slot, together.")
    held_bytes: int = Field(description="Blocks of prompts that it has cached at the end.")
    settings: str = Field("", description="Where it differs from the rest of the fleet.")
    sent_bytes: int = Field(0, description="Of prompts sent to decode replicas, by each rank.")
    sending_waited_ns: int = Field(0, description="Time that prompts waited for others' sending.")


class ReplayFleet(Part):
    """Several servers behind a router."""

    router: str = Field(description="Who chose the replica that computed a prompt.")
    decode_router: str | None = Field(description="Who chose where to decode; null for the same.")
    replicas: list[FleetReplica] = Field(description="Those that computed prompts first.")
    prompt_tokens: int = Field(description="Tokens of all prompts that were served.")
    saved_tokens: int = Field(description="Prompt tokens that a replica found cached.")
    pooled_saved_tokens: int = Field(description="What one pool of all blocks would save, by LRU.")
    ideal_saved_tokens: int = Field(description="What one pool would save that forgets nothing.")
    held_bytes: int = Field(description="Blocks of prompts cached at the end, each replica's.")
    repeated_bytes: int = Field(description="Bytes that a replica before has as well.")
    slo: dict[str, float] = Field(description="What a good request keeps, in ns by name of time.")
    good_requests: int = Field(description="Requests that kept it; all served, if there is none.")
    gpu_hour_price: float | None = Field(description="Of a GPU; null where none was given.")

    @property
    def gpus(self) -> int:
        return sum(replica.gpus for replica in self.replicas)

    @property
    def imbalance(self) -> float | None:
        """Busy time of the busiest replica that computes prompts over the mean of those."""
        busy = [replica.busy_ns for replica in self.replicas if replica.role != "decode"]
        return max(busy) * len(busy) / sum(busy) if sum(busy) else None

    def gpu_hours(self, wall_ns: int) -> float:
        """GPUs times the time of the whole replay."""
        return self.gpus * wall_ns / 3.6e12

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        saved = sum(replica.saved_tokens for replica in self.replicas)
        if saved != self.saved_tokens:
            raise ValueError(
                f"replicas saved {saved:,} tokens, and the fleet {self.saved_tokens:,}"
            )
        held = sum(replica.held_bytes for replica in self.replicas)
        if held != self.held_bytes:
            raise ValueError(f"replicas hold {held:,} B, and the fleet {self.held_bytes:,}")
        return self


class Constant(Part):
    """A number that the times depend on."""

    name: str = Field(description="Its name.")
    value: float = Field(description="How much.")
    unit: str = Field(description="Of what.")
    source: str = Field(description="Where it comes from.")


class ReplayPool(Part):
    """A part of the memory."""

    name: str = Field(description="``slots``, ``checkpoints`` or ``blocks``.")
    units: int | None = Field(description="How many there are; null without a limit.")
    unit_bytes: int = Field(description="Bytes of one.")
    peak_units: int = Field(description="Max in use; of blocks, those that requests held.")


class Reuse(Part):
    """Prompts against what was cached; requests count once, however often they are recomputed."""

    shared_tokens: int = Field(description="Tokens of the blocks that prompts share.")
    rule: str = Field("ideal", description="How prompts were found, kept and evicted.")
    setting: str = Field("", description="What a user of the engine writes to have the rule.")
    requests: int = Field(description="Requests admitted.")
    prompt_blocks: int = Field(description="Whole shared blocks of their prompts.")
    found_blocks: int = Field(description="Blocks among them that were cached.")
    prompt_tokens: int = Field(description="Tokens of their prompts.")
    seen_tokens: int = Field(description="Of earlier prompts: the most that could be saved.")
    saved_tokens: int = Field(description="Tokens that were not computed.")
    lost_tokens: dict[str, int] = Field(description="Seen and computed again, by reason.")
    computed_tokens: int = Field(description="Prompt tokens computed, repeats included.")
    again_tokens: int = Field(description="Tokens computed twice, by a preemption.")
    deferred_requests: int = Field(description="Requests that waited for another one's prefix.")
    restored_checkpoints: int = Field(description="How often window and state were brought back.")
    written_checkpoints: int = Field(description="Checkpoints written.")
    evicted_checkpoints: int = Field(description="Checkpoints that made room for others.")
    kept_bytes: int = Field(description="Windows and states written to be resumed from.")
    evicted_blocks: int = Field(description="Cached blocks evicted, in shared blocks.")

    @model_validator(mode="after")
    def _tokens_add_up(self) -> Self:
        total = self.saved_tokens + sum(self.lost_tokens.values())
        if total != self.seen_tokens:
            raise ValueError(
                f"saved and lost tokens are {total:,}, and {self.seen_tokens:,} were seen before"
            )
        return self


class ReplayWork(Part, extra="ignore"):
    """What all steps did; older records also have bytes by operation, which are not read."""

    steps: int = Field(description="Steps.")
    copy_bytes: int = Field(description="Moved to keep windows and states and to bring them back.")
    counts: dict[str, int] = Field(default_factory=dict)
    """What took time on the rank with the most to do, by name; empty in older records."""
    idle_ns: int = Field(description="Time in which no request was served.")


class ReplaySeries(Columns):
    """What was held at moments of the replay."""

    at_ns: list[int] = Field(description="When.")
    own_blocks: list[int] = Field(description="Blocks that one request held for itself.")
    shared_blocks: list[int] = Field(description="Cached blocks that requests were using.")
    cached_blocks: list[int] = Field(description="Cached blocks that no request was using.")
    checkpoints: list[int] = Field(description="Checkpoints kept.")
    running: list[int] = Field(description="Requests that ran, or that a tier restored for.")
    paused: list[int] = Field(description="Requests that held a slot and did not.")
    waiting: list[int] = Field(description="Requests without a slot.")


class ReplayTier(Part):
    """One level of memory below the GPUs."""

    name: str = Field(description="``host``, ``disk`` or ``remote``.")
    capacity_bytes: int = Field(description="All of it; for context, where tails have their own.")
    tail_capacity_bytes: int | None = Field(description="For windows and states; null if shared.")
    peak_bytes: int = Field(description="Most that it held.")
    hit_tokens: int = Field(description="Tokens of prompts that it gave.")
    read_bytes: int = Field(description="Read from it.")
    written_bytes: int = Field(description="Written to it.")
    useful_bytes: int = Field(description="Entries and keys of the context, in both directions.")
    reads: int = Field(description="Transfers out of it.")
    writes: int = Field(description="Transfers into it.")
    read_waited_ns: int = Field(description="Time for which reads waited for others, together.")
    write_waited_ns: int = Field(description="Time for which writes waited for others, together.")
    lost_tokens: dict[str, int] = Field(default_factory=dict)
    """Tokens of prompts that it could have given, by why it did not."""

    @property
    def amplification(self) -> float | None:
        """Bytes moved for a useful one; None where nothing useful was."""
        moved = self.read_bytes + self.written_bytes
        return moved / self.useful_bytes if self.useful_bytes else None


class ReplayTiers(Part):
    """What was kept below the GPUs, and how much came back."""

    tiers: list[ReplayTier] = Field(description="The one next to the GPUs first.")
    object_tokens: int = Field(description="Tokens of an object of context.")
    context_bytes: int = Field(description="Bytes of one, as it is kept.")
    tail_bytes: int = Field(description="Of windows and states at a place; 0 if with context.")
    asked_tokens: int = Field(description="Prompt tokens cached once and not whole on the GPU.")
    restored_tokens: int = Field(description="Tokens that were brought back.")
    lost_tokens: dict[str, int] = Field(description="Not restored by any tier, by reason.")

    @model_validator(mode="after")
    def _tokens_add_up(self) -> Self:
        total = self.restored_tokens + sum(self.lost_tokens.values())
        if total != self.asked_tokens:
            raise ValueError(
                f"restored and lost tokens are {total:,}, and {self.asked_tokens:,} were asked of "
                "tiers"
            )
        hits = sum(tier.hit_tokens for tier in self.tiers)
        if hits != self.restored_tokens:
            raise ValueError(f"tiers gave {hits:,} tokens, and {self.restored_tokens:,} came back")
        lost = sum((Counter(tier.lost_tokens) for tier in self.tiers), Counter[str]())
        if lost and lost != self.lost_tokens:
            raise ValueError(f"tiers lost {dict(lost)}, and all together {self.lost_tokens}")
        return self


class ReplayResult(Part):
    """A replay of a trace in virtual time."""

    clock: str = Field("stated", description="``model``; older records have others.")
    constants: list[Constant] = Field(description="Everything the times depend on.")
    extrapolated: list[str] = Field(default_factory=list)
    """What was timed outside of a table of steps, in older records."""
    pools: list[ReplayPool] = Field(description="How memory is divided; a fleet's by unit size.")
    remainder_bytes: int = Field(description="Memory that was too little for one more block.")
    padding_bytes: int = Field(description="Bytes of a block that never hold anything.")
    rounding_bytes: int = Field(description="Room beyond tokens when most blocks were held.")
    reuse: Reuse = Field(description="Prompts against what was cached.")
    work: ReplayWork = Field(description="What all steps did.")
    arrived_ns: int | None = None
    """From the first arrival to the last; null where requests follow answers, and in older
    records."""
    mean_decoding: float = Field(0.0, description="Mean requests decoding while anybody ran.")
    pauses: int = Field(description="How often a request was paused.")
    evictions: int = Field(description="How often a paused request was preempted and recomputed.")
    rejected: dict[str, int] = Field(description="Requests that could never be served, by reason.")
    series: ReplaySeries = Field(description="What was held over time.")
    tiers: ReplayTiers | None = Field(None, description="What was kept below the GPUs, if any.")
    fleet: ReplayFleet | None = Field(None, description="The servers; null for one server.")
    data: dict[str, Any] | None = Field(None, description="In older records that moved bytes.")
