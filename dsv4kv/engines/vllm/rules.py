"""The rules by which vLLM 0.33 reuses prefixes, by its setting of what it keeps of windows."""

from dataclasses import replace

from dsv4kv.core.cache import EngineCache
from dsv4kv.core.hashed import Group, HashedCache, Part
from dsv4kv.engines.cache import Pool, tail_groups, uncached_groups
from dsv4kv.engines.rule import Rule, count_hits, one_group, serve_alone
from dsv4kv.engines.vllm.tables import TailGroup, number_ways
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.outcome import Outcome
from dsv4kv.prefix.paths import Ints

_DRAFTS = ("none", "dspark", "mtp", "mtp+connector")
_KINDS = ("v4",)


def open_vllm(
    pool: Pool,
    groups: tuple[TailGroup, ...],
    retention_tokens: int | None,
    replayed_tokens: int = 0,
) -> HashedCache:
    """An empty cache of context, and of groups of windows and states if there are any.

    Raises:
        ConfigError: A retention that is no whole blocks.
    """
    speculation, size = pool.speculation, pool.block_tokens
    if (retention_tokens or 0) % size:
        raise ConfigError(
            f"a retention of {retention_tokens} tokens must be whole blocks of {size} tokens."
        )
    context, followed = number_ways(
        pool.table, size, groups, speculation.key_tokens, pool.numbered
    )

    def path_of(request: int) -> tuple[list[int], list[int]]:
        return context.path(request), followed.path(request)

    return HashedCache(
        pool.blocks,
        size,
        [group_of(group) for group in groups],
        path_of,
        max(context.count, followed.count),
        retention=retention_tokens,
        chunk_tokens=pool.chunk_tokens,
        drops=speculation.drops,
        replayed_tokens=replayed_tokens,
        step_tokens=pool.step_tokens or 1,
    )


def group_of(group: TailGroup) -> Group:
    """A table as the cache takes it."""
    parts = [Part(p.blocks, p.end_tokens, p.followed, p.drafts) for p in group.parts]
    return Group(group.block_tokens, group.needed, group.seen, group.cached, parts)


def _serve(pool: Pool) -> Ints:
    alone = replace(pool, chunk_tokens=pool.block_tokens * pool.blocks)
    return serve_alone(open_vllm(alone, (), None), pool.table.input_tokens).resumed


def _groups(retention: int | None) -> Rule:
    def open_cache(pool: Pool) -> HashedCache:
        return open_vllm(pool, tail_groups(pool), retention)

    def serve(pool: Pool) -> Outcome:
        _check_chunks(pool)
        hits = serve_alone(open_cache(pool), pool.table.input_tokens)
        return count_hits(pool, hits, windows=True)

    setting = f"prefix_cache_retention_interval={retention}"
    return Rule(serve, setting, True, open_cache, _DRAFTS, _KINDS, caches_scheduled=True)


def _check_chunks(pool: Pool) -> None:
    if pool.chunk_tokens % pool.block_tokens:
        raise ConfigError(
            f"chunks of {pool.chunk_tokens} tokens of a prompt must be whole blocks of "
            f"{pool.block_tokens} tokens."
        )


def _open_replayed(pool: Pool) -> EngineCache:
    return open_vllm(pool, uncached_groups(pool), None, pool.model.window_tokens)


def _serve_replayed(pool: Pool) -> Outcome:
    _check_chunks(pool)
    again = pool.model.window_tokens
    cache = open_vllm(pool, uncached_groups(pool), None, again)
    hits = serve_alone(cache, pool.table.input_tokens)
    return count_hits(pool, hits, windows=False, replayed_tokens=again)


REPLAYED = Rule(
    _serve_replayed,
    "--swa-bounded-replay",
    open=_open_replayed,
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
