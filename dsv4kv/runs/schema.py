"""The run record: everything a run knew, measured and decided, as one JSON document.

Tables, pages and verdicts are made from a record and can be made again; nothing is aggregated
away. Times are integer nanoseconds, sizes bytes, rates computed only when reported.
"""

from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from dsv4kv.model.plan import Sharing
from dsv4kv.runs.parts import (
    Count,
    Moment,
    Nanoseconds,
    Part,
    Profile,
    ReplayResult,
    RunId,
    Telemetry,
    Temperature,
)

SCHEMA_VERSION: Final = 2

PeakName = Literal["copy", "torch_copy", "read", "write"]


class Operation(Part):
    """All calls of one operation on one kind of layer."""

    name: str = Field(description="Operation, as in ``dsv4kv.ops``: ``gather_topk``, …")
    layer_type: str = Field(description="Attention of its layers: ``swa``, ``csa`` or ``hca``.")
    samples_ns: list[Nanoseconds] = Field(description="Duration of every timed call.")
    entries: list[Count] = Field(description="Entries (rows, tokens) each timed call worked on.")
    bytes: list[Count] = Field(description="Useful bytes moved by each, by the byte model.")
    flops: list[Count] = Field(default_factory=list)
    """Floating-point operations of each timed call's matrix products; empty without any."""
    temperature: Temperature | None = None
    """``cold``: the calls of a sample each had memory of their own, together more than four times
    the L2 cache; ``L2-resident``: the same, but together less; ``hot``: the same memory; null: as
    the workload had it."""
    distinct_bytes: Count | None = None
    """Useful bytes between two uses of the same page, state or output; null where that is not
    known."""
    throttled: Count = Field(
        0, description="Samples dropped, as the GPU was throttled during them."
    )
    calls_per_step: Count | None = None
    """Calls of it in one decode step, a layer each; null where steps were timed, not calls."""

    @model_validator(mode="after")
    def _samples_agree(self) -> Self:
        times, entries, sizes = map(len, (self.samples_ns, self.entries, self.bytes))
        if not times == entries == sizes:
            raise ValueError(
                f"{self.name} ({self.layer_type}) has {times} samples_ns, {entries} entries and "
                f"{sizes} bytes; they must be as many"
            )
        return self


class NotMeasured(Part):
    """An operation on one kind of layer that there is no figure of."""

    name: str = Field(description="Operation, as in ``Operation``.")
    layer_type: str = Field(description="Attention type of the layers.")
    temperature: Temperature = Field(description="As it would have been timed.")
    why: Literal["budget", "throttled"]
    """``budget``: ``measure.figures_seconds`` were over; ``throttled``: the GPU was, all the
    time."""


class Latency(Part):
    """All samples of one bookkeeping action or of a whole step."""

    name: str
    """``prepare``, ``admit``, ``release``, ``step``, ``decode_step``; on a GPU ``decode_graph``
    and ``decode_eager`` with ``_host`` (until all is launched) or ``_device`` (on its clock)."""
    samples_ns: list[Nanoseconds] = Field(description="Duration of every timed call.")
    factor: float | None = None
    """Of a model's times: nine of ten held-out points lay between what it said divided by this
    and multiplied with it; null where they were measured, or nothing is known of the error."""


class Pool(Part):
    """One pool of the cache: planned and real size."""

    name: str = Field(description="``main``, ``indexer``, ``window``, ``state`` or ``tables``.")
    layer_type: str = Field(description="Attention type of its layers, or ``all``.")
    layers: Count = Field(description="Number of layers that have one.")
    units: Count = Field(description="Blocks (or request slots) per layer.")
    unit_bytes: Count = Field(description="Bytes of one block's page (or one slot) in one layer.")
    predicted_bytes: Count = Field(description="What the plan said all layers together need.")
    allocated_bytes: Count = Field(description="Allocated bytes.")


class CacheSummary(Part):
    """The cache that was built."""

    model: str = Field(description="Model name.")
    layers: dict[str, int] = Field(description="Number of layers held per attention type.")
    total_layers: Count = Field(description="Layers of the whole model, without drafts.")
    block_tokens: Count = Field(description="Tokens of context one block covers.")
    sharing: Sharing = Field(description="``model``, ``type`` or ``layer``.")
    formats: dict[str, str] = Field(description="Formats of ``main``, ``window``, ``indexer``.")
    state: str = Field(description="HCA state format.")
    num_blocks: Count = Field(description="Blocks of each pool.")
    total_blocks: Count = Field(description="Blocks of all tables, which ``peak_blocks`` counts.")
    num_slots: Count = Field(description="Request slots.")
    max_context_tokens: Count = Field(description="Longest request, in tokens.")
    bytes_per_token: float = Field(description="Bytes of one more token, all layers held.")
    bytes_per_request: Count = Field(description="Window and state of a slot, all layers held.")
    pools: list[Pool] = Field(description="Every pool; empty when the run moved no data.")


class Totals(Part, frozen=False):
    """What went through the cache; the only part that is filled while it runs."""

    requests: Count = Field(description="Requests served to the end.")
    rejected: Count = Field(description="Requests longer than the cache can hold, not served.")
    input_tokens: Count = Field(description="Prompt tokens processed.")
    output_tokens: Count = Field(description="Tokens generated (accepted, with speculation).")
    drafted_tokens: Count = Field(description="Draft tokens proposed.")
    rolled_back_tokens: Count = Field(description="Draft tokens rolled back.")
    resumed_tokens: Count = Field(0, description="Prompt tokens that an earlier one computed.")
    placed_tokens: Count = Field(0, description="Prompt tokens that were placed, not processed.")
    steps: Count = Field(description="Steps run.")
    steps_in_turns: Count = Field(0, description="Interleaved with another process, by ``--ab``.")
    wall_ns: Count = Field(description="Time from first to last step, without checks.")
    peak_blocks: Count = Field(description="Max blocks allocated, all tables together.")
    peak_rounding_bytes: Count = Field(description="Held bytes beyond valid entries, at the peak.")
    peak_requests: Count = Field(description="Max requests in flight.")
    blocks_left: Count = Field(description="Blocks held at the end; all but 0 is an error.")


class Verification(Part):
    """Checks against the reference made during the run."""

    checks: int = Field(description="Sampled outputs compared.")
    by_operation: dict[str, int] = Field(description="Comparisons per operation.")
    failures: list[str] = Field(description="A sentence for each output that differed.")


NOTHING_CHECKED = Verification(checks=0, by_operation={}, failures=[])


class Memcpy(Part):
    """Bandwidth of a plain copy on this machine, in this run, on the same threads."""

    bytes: int = Field(gt=0, description="Bytes read plus bytes written by one copy.")
    samples_ns: list[Nanoseconds] = Field(description="Duration of every copy.")


class Peak(Part):
    """What the memory of a GPU gives at best, in this run."""

    name: PeakName = Field(description="A copy reads and writes all: our accesses or torch's.")
    bytes: int = Field(gt=0, description="Bytes read plus bytes written by one call.")
    samples_ns: list[Nanoseconds] = Field(description="Duration of every call.")
    throttled: int = Field(0, description="Samples dropped, as the GPU was throttled during them.")


class Case(Part, extra="ignore"):
    """One configuration's measurements; a sweep has several."""

    axis: dict[str, Any] = Field(description="Values of swept settings, empty without a sweep.")
    status: Literal["complete", "incomplete", "failed", "skipped"]
    """``incomplete`` after Ctrl-C, ``failed`` with a sentence in ``error``, ``skipped`` with one
    where this machine lacks what it takes."""
    error: str | None = Field(description="Why it failed or was skipped.")
    config: dict[str, Any] = Field(description="The whole resolved configuration.")
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where the cache was.")
    backend: str = Field(description="``cpu``, ``cuda``, or where operations come from.")
    foreign: list[str] = Field(default_factory=list)
    """Operations that are not the toolkit's own, checked against the reference before the run."""
    foreign_cases: dict[str, int] = Field(default_factory=dict)
    """Cases in which each of them equals the reference."""
    variants: dict[str, str] = Field(default_factory=dict)
    """How operations were done that can be done in several ways; see ``ops.variant``."""
    backend_version: str | None = Field(None, description="Version of the package they come from.")
    cache: CacheSummary | None = Field(description="The cache; null if building failed.")
    totals: Totals | None = Field(description="What went through it; null if it never ran.")
    operations: list[Operation] = Field(description="By operation and layer type; empty if none.")
    latencies: list[Latency] = Field(description="Bookkeeping and steps.")
    memcpy: Memcpy | None = Field(description="Baseline of rates on the CPU; null elsewhere.")
    peaks: list[Peak] = Field(default_factory=list, description="The yardsticks on a GPU.")
    empty_kernel_ns: list[Nanoseconds] | None = None
    """What a kernel that does nothing takes in a chain of them: no operation on a GPU takes less
    for each of its kernels; null where that was not timed."""
    not_measured: list[NotMeasured] = Field(default_factory=list)
    """Operations without a figure."""
    verification: Verification = Field(description="Checks against the reference.")
    gathers_because: str | None = Field(None, description="Why steps gather, where not asked for.")
    launch: int = Field(0, description="Which of ``launches`` measured it.")
    telemetry: Telemetry | None = Field(None, description="Of the machine; null if not polled.")
    profile: Profile | None = Field(None, description="Kernels' time; null if not profiled.")
    replay: ReplayResult | None = Field(None, description="A replay's results, in virtual time.")


class GpuFacts(Part):
    """The GPU that a run used."""

    name: str = Field(description="As the driver names it.")
    capability: str = Field(description="Compute capability: ``9.0``.")
    multiprocessors: int = Field(description="Streaming multiprocessors.")
    memory_bytes: int = Field(description="Memory.")
    l2_bytes: int = Field(description="L2 cache.")


class Environment(Part):
    """Machine and software; absent facts are null."""

    hostname_sha256: str = Field(description="Digest of its name, to distinguish machines.")
    platform: str = Field(description="Operating system and kernel.")
    python: str = Field(description="Python version.")
    cpu: str | None = Field(description="CPU model.")
    cpu_count: int | None = Field(description="CPUs this process may use.")
    memory_bytes: int | None = Field(description="Physical memory.")
    load_1min: float | None = Field(description="Load average when the run began.")
    governor: str | None = Field(description="CPU frequency governor.")
    versions: dict[str, str | None] = Field(description="Of dsv4kv, torch, numpy, CUDA, driver.")
    variables: dict[str, str] = Field(description="Variables that change speed, by allow-list.")
    git_sha: str | None = Field(description="Revision of the source tree, if run from one.")
    git_dirty: bool | None = Field(description="Whether that tree had uncommitted changes.")
    gpu: GpuFacts | None = Field(None, description="The GPU; null where none was used.")


class Launch(Part):
    """One of several fresh processes that ran every case."""

    launch: int = Field(description="Index, from 0.")
    started_utc: Moment = Field(description="Start of the process, ISO 8601.")
    ended_utc: Moment = Field(description="End of the process, ISO 8601.")
    status: Literal["complete", "incomplete", "failed", "crashed", "timeout", "out_of_memory"]
    """``failed``: a case did, or it was refused; the last three ended without a record."""
    error: str | None = Field(description="Why it is not complete.")
    pair: str = Field("", description="Shared with the launch whose steps were interleaved.")


class RunRecord(Part):
    """A run of ``dsv4kv bench``."""

    schema_version: Literal[2] = Field(SCHEMA_VERSION, description="Version of this schema.")
    run_id: RunId = Field(description="Unique name: UTC time, config name, random suffix.")
    started_utc: Moment = Field(description="Start, ISO 8601.")
    ended_utc: Moment = Field(description="End, ISO 8601.")
    status: Literal["complete", "incomplete", "failed"]
    """Worst status of the cases."""
    argv: list[str] = Field(description="Command line as given.")
    reproduce: str = Field(description="One command line that repeats the run.")
    config_source: str = Field(description="Path or name of the configuration file.")
    config_sha256: str = Field(description="Digest of the configuration text, before overrides.")
    trace_source: str | None = Field(description="Path or name of the trace; null if synthetic.")
    trace_sha256: str | None = Field(description="Digest of the trace's bytes; null if synthetic.")
    seed: int = Field(description="Seed of the run.")
    environment: Environment = Field(description="Machine and software.")
    cases: list[Case] = Field(description="Measurements, one per configuration and launch.")
    launches: list[Launch] = Field(default_factory=list)
    """The fresh processes of ``--launches``; empty where the run was one process."""

    @model_validator(mode="after")
    def _launches_agree(self) -> Self:
        """Cases name their launch by its place in the list."""
        if [launch.launch for launch in self.launches] != list(range(len(self.launches))):
            raise ValueError("launches are not numbered from 0, each by its place")
        count = len(self.launches) or 1
        if strangers := {case.launch for case in self.cases} - set(range(count)):
            raise ValueError(f"cases of launch {min(strangers)}, and there are {count} launches")
        return self
