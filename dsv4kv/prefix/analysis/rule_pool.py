"""The cache that an engine's rule is given, and what the engine makes of it."""

from dataclasses import dataclass

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import choose_formats
from dsv4kv.prefix.analysis.group_pool import TailGroup
from dsv4kv.prefix.analysis.paths import PathTable
from dsv4kv.sizing.deployment import Deployment
from dsv4kv.sizing.prefix import prefix_rule

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
    """

    table: PathTable
    tokens: int
    block_tokens: int
    model: DSV4Config
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS

    @property
    def blocks(self) -> int:
        """Whole blocks of the pool."""
        return self.tokens // self.block_tokens

    @property
    def window_pages(self) -> int:
        """Pages of SGLang's pool of windows."""
        return self.blocks // WINDOW_RATIO


def tail_groups(pool: Pool) -> tuple[TailGroup, ...]:
    """Windows and states of vLLM 0.33, as its sizing rules know them."""
    deployment = Deployment(
        pool.model,
        choose_formats(pool.model, indexer="fp8"),
        max_context_tokens=pool.model.max_context_tokens,
        in_flight_tokens=pool.chunk_tokens,
        block_tokens=pool.block_tokens,
    )
    return tuple(
        TailGroup(need.block_tokens, need.blocks)
        for need in prefix_rule("vllm:0.33", deployment).needs
        if need.blocks is not None
        for _ in range(need.groups)
    )


def check_pages(pool: Pool) -> None:
    """Refuse pages that are smaller than a window; raises ``ConfigError``."""
    if pool.block_tokens < pool.model.window_tokens:
        raise ConfigError(
            f"pages of {pool.block_tokens} tokens do not hold a window of "
            f"{pool.model.window_tokens}: SGLang's are {ENGINE_BLOCK_TOKENS}."
        )
