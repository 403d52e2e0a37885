"""The part of the run record that a profiler fills: kernels and steps.

Times are integer nanoseconds, sizes bytes. The table of steps is kept as columns,
lists of one length, since there may be many rows.
"""

from typing import Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from dsv4kv.runs.part import Part, check_columns

Category = Literal["insert", "gather", "compress", "indexer", "attention", "other"]
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
CACHE_CATEGORIES: Final[tuple[Category, ...]] = CATEGORIES[:4]
"""Those that are work on the cache: attention reads it, but would be there without."""
OTHER: Final[Category] = "other"


class KernelRow(Part):
    """All calls of one kernel in the steps, or in the whole profile where there are no steps."""

    model_config = Part.model_config | {"extra": "ignore"}  # older records have launch shapes

    name: str = Field(description="Full name.")
    kind: Literal["kernel", "memcpy", "memset", "graph", "op", "range"]
    """``graph``: a graph traced as a whole; on a CPU ``op`` (of torch) and ``range`` (marked)."""
    category: Category = Field(description="What it does to a KV cache, by ``configs/profile/``.")
    engine: str | None = Field(description="Whose rule says so; null where none fits.")
    operation: str | None = Field(description="Operation of the toolkit that it belongs to.")
    phase: str | None
    """Innermost marked range inside the step that launched most of its calls."""
    calls: int = Field(description="How often it ran.")
    total_ns: int
    """All of its time; on a CPU the time that nothing inside it accounts for."""
    median_ns: int = Field(description="Median of a call.")
    min_ns: int = Field(description="Shortest call.")
    gap_ns: int | None = Field(description="Median idle time before it, within a step.")
    useful_bytes: int | None
    """Bytes it must move by the byte model, all calls; where it is an operation on its own."""
    counted_bytes: int | None = Field(description="Counted bytes: of a copy, or in DRAM (ncu).")


class OperationRow(Part):
    """An operation of the toolkit: all its kernels, or its marked range on a CPU."""

    name: str = Field(description="Operation, as in ``dsv4kv.ops``; on a CPU with the layer type.")
    category: Category = Field(description="What it does to a KV cache.")
    calls: int = Field(description="How often it ran (its most frequent kernel did).")
    total_ns: int = Field(description="All of its time.")
    useful_bytes: int | None = Field(description="Bytes it must move by the byte model.")
    dram_bytes: int | None = Field(description="Bytes moved in DRAM, as ncu counted them.")


class StepTimes(Part):
    """One row for each step on each GPU, or for each step on a CPU."""

    model_config = Part.model_config | {"extra": "ignore"}  # older records count launches

    device: list[int] = Field(description="GPU; 0 on a CPU.")
    host_ns: list[int] = Field(description="Host: begin to end of the marked range.")
    span_ns: list[int] = Field(description="GPU: first begin to last end; CPU: the host's.")
    busy_ns: list[int]
    """GPU: time with at least one piece of work; on a CPU time in torch operations."""
    gap_ns: list[int] = Field(description="GPU: span less busy; CPU: outside operations.")
    launch_ns: list[int]
    """Host calls that launched the work; on a CPU time in operations outside torch."""
    inputs_ns: list[int]
    """CPU: time for synthetic inputs, which is in none of the others; 0 on a GPU."""

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        check_columns(self, type(self).model_fields)
        if not self.device:
            raise ValueError("there are no steps: null says so")
        return self


class KernelTable(Part):
    """A profile, whichever profiler it is from."""

    tool: Literal["nsys", "ncu", "kineto"]
    """Profiler that wrote it; ``kineto`` is torch.profiler."""
    tool_version: str | None = Field(description="Version of the profiler or of its file format.")
    devices: list[str] = Field(description="Names of the GPUs that worked.")
    kernels: list[KernelRow] = Field(description="Kernels, copies, operations; longest first.")
    operations: list[OperationRow]
    """The toolkit's; empty in profiles of others."""
    num_steps: int = Field(description="Steps; 0 where the profile has none.")
    steps: StepTimes | None = Field(description="Their times; null without steps.")
    timeline: dict[str, Any] | None = None
    """Only in older records: one step, piece by piece."""
    outside_calls: int = Field(description="Pieces outside all steps, in none of the tables.")
    outside_ns: int = Field(description="Their time.")
    warnings: list[str] = Field(description="What spoils the numbers, worst first.")
    notes: list[str] = Field(description="What else to know.")


class Profile(Part):
    """What was profiled, how, and what was found."""

    why: str = Field(description="Which profiler, and why this one.")
    command: list[str] = Field(description="The profiler's; empty inside the process.")
    files: list[str] = Field(description="What the profiler wrote.")
    step_requests: list[int]
    """Of every profiled step; empty for others' profiles."""
    useful_bytes: dict[str, int]
    """Bytes that operations of all profiled steps must move, by the byte model."""
    table: KernelTable | None = Field(description="What was found; null while it is not read yet.")
    memory: dict[str, Any] | None = None
    """Only in older records: memory around the building of the pools."""
