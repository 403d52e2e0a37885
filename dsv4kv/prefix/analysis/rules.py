"""The rules by which engines reuse prefixes, by name.

Each is an exact replay of a trace whose requests are served one after the other and leave only
their prompts behind, and a cache for requests that run side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.analysis.engine_cache import EngineCache
from dsv4kv.prefix.analysis.group_pool import GroupHits
from dsv4kv.prefix.analysis.losses import Losses
from dsv4kv.prefix.analysis.nodes import NumberedPaths
from dsv4kv.prefix.analysis.outcome import Outcome
from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.reuse import find_reuse
from dsv4kv.prefix.analysis.rule_pool import (
    ENGINE_BLOCK_TOKENS,
    Pool,
    check_pages,
    tail_groups,
)
from dsv4kv.prefix.analysis.sglang_cache import open_sglang
from dsv4kv.prefix.analysis.sglang_rule import replay_sglang
from dsv4kv.prefix.analysis.sglang_window_cache import open_sglang_windows
from dsv4kv.prefix.analysis.sglang_window_rule import replay_sglang_windows
from dsv4kv.prefix.analysis.vllm_cache import open_vllm
from dsv4kv.prefix.analysis.vllm_groups_rule import replay_vllm_groups
from dsv4kv.prefix.analysis.vllm_rule import replay_vllm

_TAIL_PAGES = 2  # whole pages are given back, so the page before the last window stays too


@dataclass(frozen=True)
class Rule:
    """How an engine reuses prefixes.

    Attributes:
        replay: Serves the trace.
        explains: In one line, for help and tables.
        setting: What a user of the engine writes to have it.
        windows: Whether it asks for windows and states too, as DeepSeek-V4 needs.
        open: Makes the engine's cache, for requests that run side by side.
    """

    replay: Callable[[Pool], Outcome]
    explains: str
    setting: str = ""
    windows: bool = False
    open: Callable[[Pool, NumberedPaths], EngineCache] | None = None

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a block where none are asked for; None takes what is there."""
        return ENGINE_BLOCK_TOKENS if self.open else None


def find_rule(name: str) -> Rule:
    """A rule by name; raises ``ConfigError`` with the names there are."""
    if name not in RULES:
        raise ConfigError(f"{name!r} is no rule: take {', '.join(RULES)}.")
    return RULES[name]


def run_rule(name: str, pool: Pool) -> Outcome:
    """Serve a trace by a rule.

    Raises:
        ConfigError: No such rule, blocks that do not fit the trace's, or a pool too small for the
            longest prompt.
    """
    rule = find_rule(name)
    longest = int(pool.table.input_tokens.max())
    if pool.blocks < -(-longest // pool.block_tokens):
        raise ConfigError(
            f"a pool of {pool.tokens:,} tokens is smaller than the longest prompt, {longest:,} "
            "tokens: no request of that length could run."
        )
    return rule.replay(pool)


def _ideal(pool: Pool) -> Outcome:
    reuse = find_reuse(pool.table, pool.block_tokens)
    found, once = reuse.found_tokens(pool.blocks), reuse.found_tokens(None)
    losses = Losses(evicted_block=int((once - found).sum()))
    return Outcome("ideal", found, pool.table.total_input_tokens, losses, int(found.sum()))


def _one_group(
    name: str,
    replay: Callable[[PathTable, int, int], Ints],
    open_cache: Callable[[Pool, NumberedPaths], EngineCache],
    explains: str,
) -> Rule:
    def serve(pool: Pool) -> Outcome:
        hits = replay(pool.table, pool.block_tokens, pool.blocks)
        return _tell(name, pool, GroupHits(hits, hits, hits))

    return Rule(serve, explains, open=open_cache)


def _vllm_groups(name: str, retention: int | None, explains: str, setting: str) -> Rule:
    def serve(pool: Pool) -> Outcome:
        reuse = find_reuse(pool.table, pool.block_tokens, whole_blocks=True)
        hits = replay_vllm_groups(
            pool.table,
            reuse,
            pool.blocks,
            tail_groups(pool),
            retention_tokens=retention,
            chunk_tokens=pool.chunk_tokens,
        )
        return _tell(name, pool, hits)

    def open_cache(pool: Pool, paths: NumberedPaths) -> EngineCache:
        return open_vllm(pool, paths, tail_groups(pool), retention)

    return Rule(serve, explains, setting, windows=True, open=open_cache)


def _sglang_windows(name: str, tail_pages: int | None, explains: str) -> Rule:
    def serve(pool: Pool) -> Outcome:
        check_pages(pool)
        window_pages = pool.window_pages
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

    def open_cache(pool: Pool, _: NumberedPaths) -> EngineCache:
        return open_sglang_windows(pool, tail_pages)

    return Rule(serve, explains, "swa_full_tokens_ratio=0.1", windows=True, open=open_cache)


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
    "vllm": _one_group(
        "vllm",
        replay_vllm,
        lambda pool, paths: open_vllm(pool, paths, (), None),
        "full blocks, one group",
    ),
    "sglang": _one_group(
        "sglang",
        replay_sglang,
        lambda pool, _: open_sglang(pool),
        "radix tree of pages, one pool",
    ),
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
