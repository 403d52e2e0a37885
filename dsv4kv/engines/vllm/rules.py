"""The rules by which vLLM 0.33 reuses prefixes, by its setting of what it keeps of windows."""

from dataclasses import replace

from dsv4kv.engines.cache import EngineCache, Pool, tail_groups, uncached_groups
from dsv4kv.engines.rule import Rule, count_hits, one_group
from dsv4kv.engines.vllm.cache import replay_vllm, replay_vllm_groups
from dsv4kv.engines.vllm.stepwise import open_vllm
from dsv4kv.prefix.outcome import Outcome
from dsv4kv.prefix.paths import Ints

_DRAFTS = ("none", "dspark", "mtp", "mtp+connector")
_KINDS = ("v4",)


def _serve(pool: Pool) -> Ints:
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


def _groups(retention: int | None) -> Rule:
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
        return count_hits(pool, hits, windows=True)

    def open_cache(pool: Pool) -> EngineCache:
        return open_vllm(pool, tail_groups(pool), retention)

    setting = f"prefix_cache_retention_interval={retention}"
    return Rule(serve, setting, True, open_cache, _DRAFTS, _KINDS, caches_scheduled=True)


def _serve_replayed(pool: Pool) -> Outcome:
    again = pool.model.window_tokens
    hits = replay_vllm_groups(
        pool.table,
        pool.block_tokens,
        pool.blocks,
        uncached_groups(pool),
        retention_tokens=None,
        chunk_tokens=pool.chunk_tokens,
        speculation=pool.speculation,
        replayed_tokens=again,
    )
    return count_hits(pool, hits, windows=False, replayed_tokens=again)


REPLAYED = Rule(
    _serve_replayed,
    "--swa-bounded-replay",
    open=lambda pool: open_vllm(pool, uncached_groups(pool), None, pool.model.window_tokens),
    speculations=("none", "dspark"),
    kinds=("v41",),
    own_block_tokens=128,
    hopper_block_tokens=64,
    replays=True,
    caches_scheduled=True,
)
ONE_GROUP = replace(
    one_group(_serve, lambda pool: open_vllm(pool, (), None), _DRAFTS), caches_scheduled=True
)
DENSE, EVERY_4096, SEMANTIC = _groups(None), _groups(4096), _groups(0)
