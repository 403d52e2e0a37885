"""What ``dsv4kv bench systems``, ``bench tiers`` and ``bench transfer`` run.

The descriptions of the fields are the documentation.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dsv4kv.choices import Choice, explained
from dsv4kv.config.bench import (
    ModelSection,
    NonNegative,
    OneOf,
    Positive,
    SecondsAboveZero,
    Section,
)
from dsv4kv.config.replay import CostSection
from dsv4kv.model.plan import StateFormat

SYSTEMS = {
    "pools": Choice("pools of blocks for every layer", "bench.systems:run_pools"),
    "slots": Choice("a row of KV for every request", "bench.slot_system:run_slots"),
    "blocks": Choice("blocks with several holders", "bench.block_system:run_blocks"),
}
"""Ways to keep a cache that ``bench systems`` runs side by side."""


class ChatSection(Section):
    """The conversations that slots and blocks serve; a user's turns follow on each other."""

    users: Positive = Field(16, description="Conversations.")
    begin: Positive = 6
    """Users that ask at the start; one more joins with every answer."""
    turns: Positive = Field(3, description="Questions of each user.")
    system_tokens: Positive = Field(200, description="Tokens that all conversations begin with.")
    question_tokens: Positive = Field(60, description="Longest question, in tokens.")
    answer_tokens: Positive = Field(90, description="Longest answer, in tokens.")

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
    prompt_tokens: Positive = Field(126, description="Tokens of a prompt.")
    decode_steps: Positive = Field(6, description="Decode steps of each request.")
    draft_tokens: NonNegative = 2
    """Drafted tokens of a decode step; seven in ten are rejected and rolled back."""


class SlotsSection(Section):
    """One contiguous row of KV for every request, found again by a tree of tokens."""

    slots: Positive = Field(10, description="Rows: concurrent requests.")
    cached_tokens: Positive = Field(20_000, description="Tokens whose place the tree remembers.")


class BlocksSection(Section):
    """Blocks with several holders, for a batch whose requests pause when memory is short."""

    block_tokens: Positive = Field(16, description="Tokens of a block.")
    rank_blocks: Annotated[tuple[Positive, ...], Field(min_length=1)] = (112, 96)
    """Blocks that each rank of a pipeline has memory for; the smallest is the limit of all."""
    paused_blocks: NonNegative = 16
    """Blocks that paused requests may keep together; beyond it the newest are evicted."""
    unified: bool = False
    """Paused requests keep their blocks in memory next to the device's, which then adds to it."""
    requests: Positive = Field(8, description="Concurrent requests.")
    policy: Literal["both", "lru", "ref_zero"] = "both"
    """A registered block without holders stays cached until its place is needed (lru) or is free
    immediately (ref_zero); both runs one after the other."""
    reset: Literal["none", "all", "prefix_cache", "counters", "both"] = "both"
    """A reset half-way, as a server's after an update of its settings, and what it preserves;
    ``all`` resets everything."""

    @property
    def total_blocks(self) -> int:
        """Blocks of the pool."""
        # All ranks of a pipeline hold blocks of the same ids, so the least of them counts. In
        # unified memory paused requests keep their blocks next to the device's.
        return min(self.rank_blocks) + (self.paused_blocks if self.unified else 0)


class SystemsConfig(Section):
    """Three systems, and what they serve."""

    run: Annotated[str, OneOf(SYSTEMS, "all")] = Field(
        "all", description=f"Systems to run: all, {explained(SYSTEMS)}."
    )
    model: str = "v4-flash"
    """Model whose layers are cached: a shipped preset or a Hugging Face config.json."""
    seed: NonNegative = Field(0, description="Seed of all data.")
    chat: ChatSection = ChatSection()
    """The conversations that slots and blocks serve."""
    pools: PoolsSection = Field(PoolsSection(), description="The first system.")
    slots: SlotsSection = Field(SlotsSection(), description="The second.")
    blocks: BlocksSection = Field(BlocksSection(), description="The third.")

    @model_validator(mode="after")
    def _conversations_fit(self) -> Self:
        tokens, total = self.chat.longest_tokens, self.blocks.total_blocks
        longest = -(-tokens // self.blocks.block_tokens)
        if self.run in ("all", "blocks") and longest > total:
            raise ValueError(
                f"a conversation of {tokens} tokens takes {longest} blocks and there are {total}: "
                "raise blocks.rank_blocks, or shorten chat"
            )
        return self


class TiersConfig(Section):
    """Prefixes, the stores they go to, and what is compared with them."""

    model: ModelSection = ModelSection()
    """The model whose cache is stored; fewer layers take less memory and time."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the cache is; ``auto`` takes a GPU where there is one."""
    block_tokens: Annotated[int, Field(gt=0, multiple_of=128)] = 256
    """Tokens of a block, and of a page in a store; engines take 256."""
    lengths: Annotated[tuple[Positive, ...], Field(min_length=1)] = (2048, 8192, 32768)
    """Prefixes, in tokens, whole blocks each. The cache holds two of the longest, a store one."""
    stores: Annotated[tuple[Literal["memory", "file"], ...], Field(min_length=1)] = (
        "memory",
        "file",
    )
    """Where they go: this process's memory, and files in ``folder``."""
    folder: str | None = None
    """Where ``file`` writes, removed at the end; null takes a folder of the user's cache."""
    threads: Positive = Field(8, description="Files that are written and read concurrently.")
    rounds: Annotated[int, Field(ge=6, le=10_000)] = 7
    """Times that every prefix is stored, looked up and restored; fewer than 6 have no interval."""
    cost: CostSection = CostSection(gpus=1)
    """The GPUs on which computing a prompt again is modelled, as ``dsv4kv replay`` does."""
    seed: NonNegative = Field(0, description="Seed of all data.")

    @model_validator(mode="after")
    def _whole_blocks(self) -> Self:
        parts = [tokens for tokens in self.lengths if tokens % self.block_tokens]
        if parts:
            raise ValueError(
                f"lengths has {parts[0]}, and stores keep whole blocks: give multiples of "
                f"block_tokens ({self.block_tokens})"
            )
        return self


class SideSection(Section):
    """One of the two caches."""

    block_tokens: Annotated[int, Field(gt=0, multiple_of=128)] = 256
    """Tokens of a block; the two caches may differ."""
    draft_tokens: NonNegative = 0
    """Drafts that may be rolled back: rings have as many rows more, and may differ, too."""


class TransferConfig(Section):
    """Two caches, a request that moves from one to the other, and how that is timed."""

    model: ModelSection = ModelSection(layers=(0, 1, 2, 3, 4, 5))
    """The model whose cache both sides hold."""
    state: StateFormat = "ring"
    """HCA compressor state: a ring of 128 rows, or the running softmax."""
    tokens: Positive = 4099
    """Tokens of the prompt that is computed, moved and decoded on."""
    timed_tokens: Positive = 65_536
    """Tokens of the request whose reads are timed: its pages hold what is drawn, not computed."""
    chunk_tokens: Positive = 2048
    """Tokens of a prompt chunk; chunks of two prompts alternate, so blocks come in such runs."""
    prefill: SideSection = Field(SideSection(), description="The cache that computes the prompt.")
    decode: SideSection = Field(SideSection(), description="The cache that decodes it.")
    decode_steps: Positive = 4
    """Steps that both go on for; everything they read is compared."""
    rounds: Annotated[int, Field(ge=6, le=10_000)] = 15
    """How often the request is read to be timed."""
    timeout_s: SecondsAboveZero = 60.0
    """Longest time until the prefill process answers, in seconds."""
    seed: NonNegative = Field(0, description="Seed of all data.")
