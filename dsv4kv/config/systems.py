"""What ``dsv4kv bench systems`` runs: three ways to keep a KV cache, and how they are timed.

The descriptions of the fields are the documentation.
"""

from typing import Annotated, Literal

from pydantic import Field

from dsv4kv.choices import Choice, explained
from dsv4kv.config.bench import NonNegative, OneOf, Positive, Seconds, Section

SYSTEMS = {
    "pools": Choice("pools of blocks for every layer", "bench.systems.pool_system:run_pools"),
    "slots": Choice("a row of KV for every request", "bench.systems.slot_system:run_slots"),
    "blocks": Choice("blocks with several holders", "bench.systems.block_system:run_blocks"),
}
"""Ways to keep a cache that ``bench systems`` runs side by side."""


class ChatSection(Section):
    """The conversations that slots and blocks serve; a user's turns follow on each other."""

    users: Positive = 16
    """Conversations."""
    begin: Positive = 6
    """Users that ask at the start; one more joins with every answer."""
    turns: Positive = 3
    """Questions of each user."""
    system_tokens: Positive = 200
    """Tokens that all conversations begin with."""
    question_tokens: Positive = 60
    """Longest question, in tokens."""
    answer_tokens: Positive = 90
    """Longest answer, in tokens."""

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest conversation at its end."""
        return self.system_tokens + self.turns * (self.question_tokens + self.answer_tokens)


class PoolsSection(Section):
    """Pools of blocks for every layer, a stack of free ones, and slots for window and state."""

    layers: tuple[NonNegative, ...] = (1, 2, 3)
    """Layers of the model whose bytes are moved: one of each attention."""
    requests: Positive = 2
    """Concurrent requests; as many again follow in their slots."""
    prompt_tokens: Positive = 126
    """Tokens of a prompt."""
    decode_steps: Positive = 6
    """Decode steps of each request."""
    draft_tokens: NonNegative = 2
    """Drafted tokens of a decode step; seven in ten are rejected and rolled back."""


class SlotsSection(Section):
    """One contiguous row of KV for every request, found again by a tree of tokens."""

    slots: Positive = 10
    """Rows: concurrent requests."""
    cached_tokens: Positive = 20_000
    """Tokens whose place the tree remembers."""


class BlocksSection(Section):
    """Blocks with several holders, for a batch whose requests pause when memory is short."""

    block_tokens: Positive = 16
    """Tokens of a block."""
    rank_blocks: Annotated[tuple[Positive, ...], Field(min_length=1)] = (112, 96)
    """Blocks that each rank of a pipeline has memory for; the smallest is the limit of all."""
    paused_blocks: NonNegative = 16
    """Blocks that paused requests may keep together; beyond it the newest are evicted."""
    unified: bool = False
    """Paused requests keep their blocks in memory next to the device's, which then adds to it."""
    requests: Positive = 8
    """Concurrent requests."""
    policy: Literal["both", "lru", "ref_zero"] = "both"
    """A registered block without holders stays cached until its place is needed (lru) or is free
    immediately (ref_zero); both runs one after the other."""
    reset: Literal["none", "all", "prefix_cache", "counters", "both"] = "both"
    """A reset half-way, as a server's after an update of its settings, and what it preserves;
    ``all`` resets everything."""


class CallsSection(Section):
    """How single calls are timed, next to the plain re-statement."""

    seconds: Seconds = 0.25
    """Time for each row; their calls are interleaved. 0 times nothing."""
    rounds: Annotated[int, Field(ge=6)] = 200
    """Most calls of each."""
    model: str = "v4-pro"
    """Model whose bookkeeping is timed, all of its layers."""
    batches: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1, 32, 256)
    """Requests of the steps that are prepared."""
    cached_blocks: Positive = 65_536
    """Blocks that are cached when one is evicted."""
    prompt_tokens: Positive = 32_768
    """Tokens of the prompts that are inserted and found."""


class SystemsConfig(Section):
    """Three systems, what they serve, and how their calls are timed."""

    name: str = "systems"
    """Name of the run."""
    run: Annotated[str, OneOf(SYSTEMS, "all")] = Field(
        "all", description=f"Systems to run: all, {explained(SYSTEMS)}."
    )
    model: str = "v4-flash"
    """Model whose layers are cached: a shipped preset or a Hugging Face config.json."""
    seed: NonNegative = 0
    """Seed of all data."""
    chat: ChatSection = ChatSection()
    """The conversations that slots and blocks serve."""
    pools: PoolsSection = PoolsSection()
    """The first system."""
    slots: SlotsSection = SlotsSection()
    """The second."""
    blocks: BlocksSection = BlocksSection()
    """The third."""
    calls: CallsSection = CallsSection()
    """How single calls are timed."""
