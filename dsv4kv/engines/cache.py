"""What an engine's prefix cache is given: the pool, the prompts, windows and states."""

from dataclasses import dataclass

from dsv4kv.core.paths import NumberedPaths
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.formats import Site, stored_formats
from dsv4kv.engines.prefix import prefix_rule
from dsv4kv.engines.registry import find_engine
from dsv4kv.engines.speculation import SPECULATIONS, Speculation
from dsv4kv.engines.vllm.sizing import Layout, VllmEngine
from dsv4kv.engines.vllm.tables import UNBOUNDED_TOKENS, TailGroup, cut_groups
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import choose_formats
from dsv4kv.prefix.paths import PathTable

DEFAULT_CHUNK_TOKENS = 8192
"""vLLM's ``max_num_batched_tokens`` on large GPUs."""
ENGINE_BLOCK_TOKENS = 256
"""Tokens of a block or page that engines take for DeepSeek-V4."""
WINDOW_RATIO = 10
"""SGLang's ``swa_full_tokens_ratio`` is 0.1."""


@dataclass(frozen=True)
class Pool:
    """The cache that a rule is given.

    Attributes:
        table: The trace.
        tokens: Size in tokens of context: so many whole blocks.
        block_tokens: Tokens of a block or page.
        model: Whose windows and states are to be kept.
        chunk_tokens: Tokens of a prompt computed at once, where it matters.
        speculation: How drafts are made.
        arch: What the GPU's kernels are compiled for, by which V4.1's blocks go in vLLM:
            ``sm_90``; None takes it as a datacenter Blackwell.
        windows: Pages of SGLang's pool of windows; None for a tenth of the pages.
        holds_chunks: SGLang up to 0.5.17: a running request holds the windows of the last chunk
            of its prompt, all of them; later that of its end alone.
        tokens_per_step: Tokens of a request that a decode step gives, on average.
        numbered: The prompts as numbers of blocks, distinguished also by the tokens after them
            that a draft asks for; None where they are not known yet.
        step_tokens: Most tokens of a request in a decode step, where a scheduler gives blocks
            step by step as the engine does (vLLM); 0: requests are promised what they need.
    """

    table: PathTable
    tokens: int
    block_tokens: int
    model: DSV4Config
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    speculation: Speculation = SPECULATIONS["none"]
    arch: str | None = None
    windows: int | None = None
    holds_chunks: bool = False
    tokens_per_step: float = 1.0
    numbered: NumberedPaths | None = None
    step_tokens: int = 0

    @property
    def blocks(self) -> int:
        """Whole blocks of the pool."""
        return self.tokens // self.block_tokens

    @property
    def window_pages(self) -> int:
        """Pages of SGLang's pool of windows."""
        return self.blocks // WINDOW_RATIO if self.windows is None else self.windows


def tail_groups(pool: Pool) -> tuple[TailGroup, ...]:
    """Windows and states of vLLM 0.33, as its sizing rules know them.

    Draft layers add none: their windows share the groups that are there. They share their sizes,
    too, so all groups of windows give up what one of them must.

    Raises:
        ConfigError: Blocks in which a window and what a draft needs behind it have no room.
    """
    deployment = Deployment(
        pool.model,
        choose_formats(pool.model, indexer="fp8"),
        max_context_tokens=pool.model.max_context_tokens,
        in_flight_tokens=pool.chunk_tokens,
        block_tokens=pool.block_tokens,
    )
    needs = [
        (need.storage, TailGroup(need.block_tokens, need.blocks, seen_tokens=need.tail_tokens))
        for need in prefix_rule("vllm:0.33", deployment).needs
        if need.blocks is not None
        for _ in range(need.groups)
    ]
    drafting = frozenset(n for n, (storage, _) in enumerate(needs) if storage == "window")
    groups = cut_groups(tuple(group for _, group in needs), pool.speculation, drafting)
    longest = max(group.tail_tokens + max(0, group.parts[-1].end_tokens) for group in groups)
    if pool.speculation.drops and longest > pool.block_tokens:
        raise ConfigError(
            f"what drafts make of hits is not known for blocks of {pool.block_tokens} tokens: a "
            f"window and the block after it are {longest}. vLLM takes {ENGINE_BLOCK_TOKENS}."
        )
    return groups


def v41_layout(
    model: DSV4Config, chunk_tokens: int, block_tokens: int, arch: str | None = None
) -> Layout:
    """Blocks of V4.1 in vLLM 0.33, as its sizing rules know them, in its formats on such a GPU."""
    stored = stored_formats(Site("vllm:0.33", model, arch), {})
    deployment = Deployment(
        model,
        choose_formats(model, *(name for name, _ in stored.values())),
        arch=arch,
        max_context_tokens=model.max_context_tokens,
        in_flight_tokens=chunk_tokens,
        block_tokens=block_tokens,
    )
    engine = find_engine("vllm:0.33")
    assert isinstance(engine, VllmEngine)
    return engine.layout(deployment)


def uncached_groups(pool: Pool) -> tuple[TailGroup, ...]:
    """Windows and rings of V4.1 in vLLM 0.33, which no hit finds.

    A ring is one block of a request, as if of more tokens than there are.
    """
    window = pool.model.window_tokens
    layout = v41_layout(pool.model, pool.chunk_tokens, pool.block_tokens, pool.arch)
    return tuple(
        TailGroup(UNBOUNDED_TOKENS, 1, cached=False)
        if group.ring
        else TailGroup(
            group.block_tokens,
            -(-window // group.block_tokens),
            cached=False,
            seen_tokens=window - 1,
        )
        for group in layout.groups[1:]
    )


def draft_needs(pool: Pool, *, windows: bool) -> tuple[int, int]:
    """Tokens after a hit that must be known for drafts, and tokens that a hit gives up."""
    drafts = pool.speculation
    if not drafts.drops:
        return drafts.key_tokens, 0
    if not windows:
        return 0, pool.block_tokens
    return max(part.end_tokens for group in tail_groups(pool) for part in group.parts), 0


def check_pages(pool: Pool) -> None:
    """Refuse pages that are smaller than a window; raises ``ConfigError``."""
    if pool.block_tokens < pool.model.window_tokens:
        raise ConfigError(
            f"pages of {pool.block_tokens} tokens do not hold a window of "
            f"{pool.model.window_tokens}: SGLang's are {ENGINE_BLOCK_TOKENS}."
        )
