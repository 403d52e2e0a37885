"""The rules by which engines reuse prefixes, by name.

Each is an exact replay of a trace whose requests are served one after the other and leave only
their prompts behind, and a cache for requests that run side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

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
    tail_groups,
)
from dsv4kv.prefix.analysis.sglang_cache import open_sglang
from dsv4kv.prefix.analysis.sglang_rule import replay_sglang
from dsv4kv.prefix.analysis.sglang_window_cache import (
    open_sglang_windows,
    replay_sglang_windows,
)
from dsv4kv.prefix.analysis.vllm_cache import open_vllm
from dsv4kv.prefix.analysis.vllm_groups_rule import replay_vllm_groups
from dsv4kv.prefix.analysis.vllm_rule import replay_vllm


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
    """Serve a trace by a rule; requests that can never run are rejected.

    Raises:
        ConfigError: No such rule, blocks that do not fit the trace's, or a pool in which no
            request can run.
    """
    rule, tokens = find_rule(name), pool.table.input_tokens
    fitting = np.flatnonzero(-(-tokens // pool.block_tokens) <= pool.blocks)
    if not len(fitting):
        raise ConfigError(
            f"a pool of {pool.tokens:,} tokens is smaller than every prompt, of "
            f"{int(tokens.min()):,} tokens and more: no request could run."
        )
    if len(fitting) == len(tokens):
        return rule.replay(pool)
    outcome = rule.replay(replace(pool, table=pool.table.select(fitting)))
    return outcome.among(tokens, fitting)


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
        return _tell(name, pool, GroupHits(hits, hits, hits, np.zeros(len(hits), bool)))

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


def _sglang_windows(name: str, *, dense: bool, explains: str) -> Rule:
    def serve(pool: Pool) -> Outcome:
        return _tell(name, pool, replay_sglang_windows(pool, dense=dense))

    def open_cache(pool: Pool, _: NumberedPaths) -> EngineCache:
        return open_sglang_windows(pool, dense=dense)

    setting = f"SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS={int(not dense)}"
    return Rule(serve, explains, setting, windows=True, open=open_cache)


def _tell(name: str, pool: Pool, hits: GroupHits) -> Outcome:
    """Hits in tokens, and what an unbounded cache of single tokens would have hit beyond them."""
    size, served = pool.block_tokens, ~hits.rejected
    table = pool.table.select(np.flatnonzero(served)) if hits.rejected.any() else pool.table
    once = find_reuse(table, table.block_tokens).found_tokens(None)
    whole = once // size * size
    allowed = np.minimum(whole, (table.input_tokens - 1) // size * size)
    resumed, found, marked = (
        blocks[served] * size for blocks in (hits.resumed, hits.found, hits.marked)
    )
    losses = Losses(
        alignment=int((once - whole).sum()),
        last_token=int((whole - allowed).sum()),
        evicted_block=int((allowed - found).sum()),
        no_checkpoint=int((found - marked).sum()),
        evicted_checkpoint=int((marked - resumed).sum()),
    )
    return Outcome(
        name,
        hits.resumed * size,
        pool.table.total_input_tokens,
        losses,
        int(found.sum()),
        rejected=int(hits.rejected.sum()),
    )


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
        "sglang-v4:dense",
        dense=True,
        explains="windows of whole prompts, in a pool a tenth as large",
    ),
    "sglang-v4:tail": _sglang_windows(
        "sglang-v4:tail",
        dense=False,
        explains="… only at ends of chunks and where prompts part (SGLang's default)",
    ),
}
"""All rules by name."""
