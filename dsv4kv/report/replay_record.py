"""What a replay found, in the record's terms: reuse, memory, work, and the model behind the times.

Times are virtual: what the stated model says, in nanoseconds since the first arrival.
"""

from typing import Self

from pydantic import model_validator

from dsv4kv.report.part import Part


class Constant(Part):
    """A number that the times depend on."""

    name: str
    """What it is."""
    value: float
    """How much."""
    unit: str
    """Of what."""
    source: str
    """Where it comes from."""


class ReplayPool(Part):
    """A part of the memory."""

    name: str
    """``slots``, ``checkpoints`` or ``blocks``."""
    units: int | None
    """How many there are; null for as many as are wanted."""
    unit_bytes: int
    """Bytes of one."""
    peak_units: int
    """Most that were in use at once; of blocks, those that requests held."""


class Reuse(Part):
    """Prompts against what was cached; requests count once, however often they start again."""

    shared_tokens: int
    """Tokens of the blocks that prompts share."""
    requests: int
    """Requests admitted."""
    resumed_requests: int
    """Of which did not have to compute their whole prompt."""
    prompt_blocks: int
    """Whole shared blocks of their prompts."""
    found_blocks: int
    """Of which cached."""
    prompt_tokens: int
    """Tokens of their prompts."""
    seen_tokens: int
    """Of which an earlier prompt had: what a cache that forgets nothing could save."""
    saved_tokens: int
    """Tokens that were not computed."""
    lost_tokens: dict[str, int]
    """Seen and computed all the same, by reason; ``in_flight`` where another request was just
    computing them."""
    computed_tokens: int
    """Prompt tokens computed, those of requests that started again included."""
    again_tokens: int
    """Of which a request had computed before it had to start again."""
    deferred_requests: int
    """Requests that waited for another one's prefix."""
    restored_checkpoints: int
    """How often window and state were brought back."""
    written_checkpoints: int
    """Checkpoints written."""
    evicted_checkpoints: int
    """Checkpoints that made room for others."""
    orphaned_checkpoints: int
    """Checkpoints that went with the block before them."""
    kept_bytes: int
    """Windows and states written to be resumed from."""
    evicted_blocks: int
    """Cached blocks evicted, in shared blocks."""

    @model_validator(mode="after")
    def _tokens_add_up(self) -> Self:
        told = self.saved_tokens + sum(self.lost_tokens.values())
        if told != self.seen_tokens:
            raise ValueError(
                f"saved and lost tokens are {told:,}, and {self.seen_tokens:,} were seen before"
            )
        return self


class ReplayWork(Part):
    """What all steps did."""

    steps: int
    """Steps."""
    weight_bytes: int
    """Weights read."""
    update_bytes: int
    """Moved to bring tokens into the cache."""
    gather_bytes: int
    """Moved to read the cache."""
    copy_bytes: int
    """Moved to keep windows and states and to bring them back."""
    operations: int
    """Multiplications and additions."""
    idle_ns: int
    """Time in which nobody was served."""


class ReplaySeries(Part):
    """What was held at moments of the replay."""

    at_ns: list[int]
    """When."""
    own_blocks: list[int]
    """Blocks that one request held for itself."""
    shared_blocks: list[int]
    """Cached blocks that requests were using."""
    cached_blocks: list[int]
    """Cached blocks that nobody was using."""
    checkpoints: list[int]
    """Checkpoints kept."""
    running: list[int]
    """Requests that ran."""
    paused: list[int]
    """Requests that held a slot and did not."""
    waiting: list[int]
    """Requests without a slot."""

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in type(self).model_fields}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the series differ in length: {lengths}")
        return self


class ReplayResult(Part):
    """A replay of a trace in virtual time."""

    constants: list[Constant]
    """Everything the times depend on."""
    pools: list[ReplayPool]
    """How the memory is divided."""
    remainder_bytes: int
    """Memory that was too little for one more block."""
    padding_bytes: int
    """Bytes of a block that never hold anything."""
    rounding_bytes: int
    """Room in held blocks beyond the tokens there, when most blocks were held."""
    reuse: Reuse
    """Prompts against what was cached."""
    work: ReplayWork
    """What all steps did."""
    pauses: int
    """How often a request was paused."""
    evictions: int
    """How often a paused request had to start again."""
    rejected: dict[str, int]
    """Requests that could never be served, by reason."""
    series: ReplaySeries
    """What was held over time."""
