"""The rules by which engines reuse prefixes, by name.

Each is an exact replay of a trace whose requests are served one after the other and leave only
their prompts behind, and a cache for requests that run side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dsv4kv.engines.cache import ENGINE_BLOCK_TOKENS, EngineCache, Pool, draft_needs, tail_groups
from dsv4kv.engines.sglang.cache import open_sglang, replay_sglang
from dsv4kv.engines.sglang.windows import open_sglang_windows, replay_sglang_windows
from dsv4kv.engines.speculation import Speculation, find_speculation
from dsv4kv.engines.vllm.cache import open_vllm, replay_vllm, replay_vllm_groups
from dsv4kv.engines.vllm.groups import GroupHits
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.outcome import Losses, Outcome
from dsv4kv.prefix.paths import Ints, find_reuse


@dataclass(frozen=True)
class Rule:
    """How an engine reuses prefixes.

    Attributes:
        replay: Serves the trace.
        explains: In one line, for help and tables.
        setting: What a user of the engine writes to have it.
        windows: Whether it asks for windows and states too, as DeepSeek-V4 needs.
        open: Makes the engine's cache, for requests that run side by side.
        speculations: By what drafts its hits are known.
    """

    replay: Callable[[Pool], Outcome]
    explains: str
    setting: str = ""
    windows: bool = False
    open: Callable[[Pool], EngineCache] | None = None
    speculations: tuple[str, ...] = ("none",)

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a block where none are asked for; None takes what is there."""
        return ENGINE_BLOCK_TOKENS if self.open else None


def find_rule(name: str) -> Rule:
    """A rule by name; raises ``ConfigError`` with the names there are."""
    if name not in RULES:
        raise ConfigError(f"{name!r} is no rule: take {', '.join(RULES)}.")
    return RULES[name]


def find_drafts(rule: str, speculation: str) -> Speculation:
    """How a rule drafts, by names; raises ``ConfigError`` where its hits are not known."""
    found, known = find_speculation(speculation), find_rule(rule).speculations
    if speculation not in known:
        raise ConfigError(
            f"what {speculation} makes of hits is not known for the rule {rule}: take "
            f"{', '.join(known)}."
        )
    return found


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
    replay: Callable[[Pool], Ints],
    open_cache: Callable[[Pool], EngineCache],
    explains: str,
    speculations: tuple[str, ...],
) -> Rule:
    def serve(pool: Pool) -> Outcome:
        hits = replay(pool)
        found = GroupHits(hits, hits, hits, np.zeros(len(hits), bool))
        return _tell(name, pool, found, windows=False)

    return Rule(serve, explains, open=open_cache, speculations=speculations)


def _serve_vllm(pool: Pool) -> Ints:
    """Hits that give a block up make copies wherever they end: these are replayed singly."""
    size, speculation = pool.block_tokens, pool.speculation
    if not speculation.drops:
        return replay_vllm(pool.table, size, pool.blocks, speculation.key_tokens)
    return replay_vllm_groups(
        pool.table,
        size,
        pool.blocks,
        (),
        retention_tokens=None,
        chunk_tokens=size * pool.blocks,
        speculation=speculation,
    ).resumed


def _serve_sglang(pool: Pool) -> Ints:
    return replay_sglang(pool.table, pool.block_tokens, pool.blocks, pool.speculation.key_tokens)


def _vllm_groups(name: str, retention: int | None, explains: str, setting: str) -> Rule:
    def serve(pool: Pool) -> Outcome:
        hits = replay_vllm_groups(
            pool.table,
            pool.block_tokens,
            pool.blocks,
            tail_groups(pool),
            retention_tokens=retention,
            chunk_tokens=pool.chunk_tokens,
            speculation=pool.speculation,
        )
        return _tell(name, pool, hits, windows=True)

    def open_cache(pool: Pool) -> EngineCache:
        return open_vllm(pool, tail_groups(pool), retention)

    return Rule(serve, explains, setting, True, open_cache, _VLLM_DRAFTS)


def _sglang_windows(name: str, *, dense: bool, explains: str) -> Rule:
    def serve(pool: Pool) -> Outcome:
        return _tell(name, pool, replay_sglang_windows(pool, dense=dense), windows=True)

    def open_cache(pool: Pool) -> EngineCache:
        return open_sglang_windows(pool, dense=dense)

    setting = f"SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS={int(not dense)}"
    return Rule(serve, explains, setting, True, open_cache, _SGLANG_DRAFTS)


def _tell(name: str, pool: Pool, hits: GroupHits, *, windows: bool) -> Outcome:
    """Hits in tokens, and what an unbounded cache of single tokens would have hit beyond them."""
    key_tokens, dropped_tokens = draft_needs(pool, windows=windows)
    size, served = pool.block_tokens, ~hits.rejected
    table = pool.table.select(np.flatnonzero(served)) if hits.rejected.any() else pool.table
    once = find_reuse(table, table.block_tokens).found_tokens(None)
    whole = once // size * size
    allowed = np.minimum(whole, (table.input_tokens - 1) // size * size)
    drafted = allowed
    if key_tokens:
        alike = find_reuse(table, size, whole_blocks=True, key_tokens=key_tokens)
        drafted = np.minimum(allowed, alike.found_tokens(None))
    drafted = np.maximum(0, drafted - dropped_tokens)
    resumed, found, marked = (
        np.minimum(blocks[served] * size, drafted)
        for blocks in (hits.resumed, hits.found, hits.marked)
    )
    losses = Losses(
        alignment=int((once - whole).sum()),
        last_token=int((whole - allowed).sum()),
        draft=int((allowed - drafted).sum()),
        evicted_block=int((drafted - found).sum()),
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


_VLLM_DRAFTS = ("none", "dspark", "mtp", "mtp+connector")
_SGLANG_DRAFTS = ("none", "dspark", "mtp")
_RETENTION = "prefix_cache_retention_interval"
RULES: dict[str, Rule] = {
    "ideal": Rule(_ideal, "whole blocks, least recently used, nothing else to keep"),
    "vllm": _one_group(
        "vllm",
        _serve_vllm,
        lambda pool: open_vllm(pool, (), None),
        "full blocks, one group",
        _VLLM_DRAFTS,
    ),
    "sglang": _one_group(
        "sglang",
        _serve_sglang,
        open_sglang,
        "radix tree of pages, one pool",
        _SGLANG_DRAFTS,
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
