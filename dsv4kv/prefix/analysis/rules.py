"""The rules by which engines reuse prefixes, by name, each an exact replay of a trace.

Requests are served one after the other and leave only their prompts behind.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import choose_formats
from dsv4kv.prefix.analysis.losses import Losses
from dsv4kv.prefix.analysis.outcome import Outcome
from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.reuse import find_reuse
from dsv4kv.prefix.analysis.sglang_rule import replay_sglang
from dsv4kv.prefix.analysis.sglang_window_rule import replay_sglang_windows
from dsv4kv.prefix.analysis.vllm_groups_rule import GroupHits, TailGroup, replay_vllm_groups
from dsv4kv.prefix.analysis.vllm_rule import replay_vllm
from dsv4kv.sizing.deployment import Deployment
from dsv4kv.sizing.prefix import prefix_rule

DEFAULT_CHUNK_TOKENS = 8192
"""vLLM's ``max_num_batched_tokens`` on large GPUs."""
_WINDOW_RATIO = 10  # SGLang's swa_full_tokens_ratio is 0.1
_TAIL_PAGES = 2  # whole pages are given back, so the page before the last window stays too


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


@dataclass(frozen=True)
class Rule:
    """How an engine reuses prefixes.

    Attributes:
        replay: Serves the trace.
        explains: In one line, for help and tables.
        setting: What a user of the engine writes to have it.
        windows: Whether it asks for windows and states too, as DeepSeek-V4 needs.
    """

    replay: Callable[[Pool], Outcome]
    explains: str
    setting: str = ""
    windows: bool = False


def run_rule(name: str, pool: Pool) -> Outcome:
    """Serve a trace by a rule.

    Raises:
        ConfigError: No such rule, blocks that do not fit the trace's, or a pool too small for the
            longest prompt.
    """
    if name not in RULES:
        raise ConfigError(f"{name!r} is no rule: take {', '.join(RULES)}.")
    longest = int(pool.table.input_tokens.max())
    if pool.blocks < -(-longest // pool.block_tokens):
        raise ConfigError(
            f"a pool of {pool.tokens:,} tokens is smaller than the longest prompt, {longest:,} "
            "tokens: no request of that length could run."
        )
    return RULES[name].replay(pool)


def _ideal(pool: Pool) -> Outcome:
    reuse = find_reuse(pool.table, pool.block_tokens)
    found, once = reuse.found_tokens(pool.blocks), reuse.found_tokens(None)
    losses = Losses(evicted_block=int((once - found).sum()))
    return Outcome("ideal", found, pool.table.total_input_tokens, losses, int(found.sum()))


def _one_group(name: str, replay: Callable[[PathTable, int, int], Ints]) -> Rule:
    def serve(pool: Pool) -> Outcome:
        hits = replay(pool.table, pool.block_tokens, pool.blocks)
        return _tell(name, pool, GroupHits(hits, hits, hits))

    explains = {"vllm": "full blocks, one group", "sglang": "radix tree of pages, one pool"}[name]
    return Rule(serve, explains)


def _vllm_groups(name: str, retention: int | None, explains: str, setting: str) -> Rule:
    def serve(pool: Pool) -> Outcome:
        reuse = find_reuse(pool.table, pool.block_tokens, whole_blocks=True)
        hits = replay_vllm_groups(
            pool.table,
            reuse,
            pool.blocks,
            _tail_groups(pool),
            retention_tokens=retention,
            chunk_tokens=pool.chunk_tokens,
        )
        return _tell(name, pool, hits)

    return Rule(serve, explains, setting, windows=True)


def _tail_groups(pool: Pool) -> tuple[TailGroup, ...]:
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


def _sglang_windows(name: str, tail_pages: int | None, explains: str) -> Rule:
    def serve(pool: Pool) -> Outcome:
        if pool.block_tokens < pool.model.window_tokens:
            raise ConfigError(
                f"pages of {pool.block_tokens} tokens do not hold a window of "
                f"{pool.model.window_tokens}: SGLang's are 256."
            )
        window_pages = pool.blocks // _WINDOW_RATIO
        longest = -(-int(pool.table.input_tokens.max()) // pool.block_tokens)
        if window_pages < longest:
            raise ConfigError(
                f"a pool of {pool.tokens:,} tokens has {window_pages:,} pages of windows, the "
                f"longest prompt needs {longest:,}."
            )
        hits = replay_sglang_windows(
            pool.table, pool.block_tokens, pool.blocks, window_pages, tail_pages=tail_pages
        )
        return _tell(name, pool, hits)

    return Rule(serve, explains, "swa_full_tokens_ratio=0.1", windows=True)


def _tell(name: str, pool: Pool, hits: GroupHits) -> Outcome:
    """Hits in tokens, and what an unbounded cache of single tokens would have hit beyond them."""
    size, tokens = pool.block_tokens, pool.table.input_tokens
    once = find_reuse(pool.table, pool.table.block_tokens).found_tokens(None)
    whole = once // size * size
    allowed = np.minimum(whole, (tokens - 1) // size * size)
    resumed, found, marked = (blocks * size for blocks in (hits.resumed, hits.found, hits.marked))
    losses = Losses(
        alignment=int((once - whole).sum()),
        last_token=int((whole - allowed).sum()),
        evicted_block=int((allowed - found).sum()),
        no_checkpoint=int((found - marked).sum()),
        evicted_checkpoint=int((marked - resumed).sum()),
    )
    return Outcome(name, resumed, pool.table.total_input_tokens, losses, int(found.sum()))


_RETENTION = "prefix_cache_retention_interval"
RULES: dict[str, Rule] = {
    "ideal": Rule(_ideal, "whole blocks, least recently used, nothing else to keep"),
    "vllm": _one_group("vllm", replay_vllm),
    "sglang": _one_group("sglang", replay_sglang),
    "vllm-v4:dense": _vllm_groups(
        "vllm-v4:dense", None, "windows and states cached at every block", f"{_RETENTION}=None"
    ),
    "vllm-v4:4096": _vllm_groups(
        "vllm-v4:4096", 4096, "… at every 4,096 tokens, ends and junctions", f"{_RETENTION}=4096"
    ),
    "vllm-v4:semantic": _vllm_groups(
        "vllm-v4:semantic", 0, "… only at ends of prompts and junctions", f"{_RETENTION}=0"
    ),
    "sglang-v4:dense": _sglang_windows(
        "sglang-v4:dense", None, "windows of whole prompts, in a pool a tenth as large"
    ),
    "sglang-v4:tail": _sglang_windows(
        "sglang-v4:tail", _TAIL_PAGES, "the last window of every prompt, in the same pool"
    ),
}
"""All rules by name."""
