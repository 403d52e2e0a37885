"""vLLM's host memory: blocks of its pool, each as large on the host as on the GPU, and LMCache.

A chunk of vLLM's own connectors is one block of one group, so a window's block costs what a block
of the whole context costs. Where every rank keeps the same, one copy serves them all. LMCache
keeps chunks of many tokens, each with the windows and states of its end.
Source: vLLM 0.33.0, ``v1/kv_offload/cpu/{spec,common}.py``, ``v1/simple_kv_offload/manager.py``,
``offloading/config.py``, ``reachable_block_mask`` of ``single_type_kv_cache_manager.py``,
``config/vllm.py``; LMCache 0.5.6, ``v1/kv_layer_groups.py``,
``v1/multiprocess/object_group_transfer.py``, ``v1/memory_management.py``, ``integration/vllm``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dsv4kv.engines import contract as ct
from dsv4kv.engines.rule import Group, Retention
from dsv4kv.engines.vllm import RELEASES
from dsv4kv.engines.vllm.layout import LayerGroup
from dsv4kv.errors import ConfigError

if TYPE_CHECKING:
    from dsv4kv.engines.vllm.sizes import VllmEngine

_SINCE = f"vllm:{RELEASES[-1].newest}"
LMCACHE_TOKENS = 256
_ALIGN = 4096  # SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT, AddressManager.ALIGN_BYTES
_SIMPLE_BYTES = 8 * 2**30  # DEFAULT_CPU_CAPACITY_BYTES
_LOCAL_BYTES = 5 * 2**30  # max_local_cpu_size
_NODE_RANKS = 8


def size_tier(
    engine: "VllmEngine", deployment: ct.Deployment, capacity: ct.Capacity, wish: ct.HostWish
) -> ct.HostTier:
    """The tier of a wish; raises ``ConfigError`` for what it does not have, or refuses."""
    if wish.tier.startswith("lmcache"):
        tier = _size_lmcache(engine, deployment, wish)
    else:
        tier = _size_blocks(engine, deployment, int(capacity.unit_bytes), wish)
    if wish.memory_bytes is None or tier.node_bytes <= wish.memory_bytes:
        return tier
    refusal = (
        f"{tier.name} takes {tier.node_bytes:,} B of a node's memory, and "
        f"{wish.memory_bytes:,} B are free: give it less."
    )
    return replace(tier, refusal=refusal)


def _size_blocks(
    engine: "VllmEngine", deployment: ct.Deployment, block: int, wish: ct.HostWish
) -> ct.HostTier:
    """OffloadingConnector: a region that a replica's ranks share; or blocks of every rank."""
    ranks = wish.replica_ranks
    if wish.tier == "native":
        if not wish.size_bytes:
            raise ConfigError(
                "vLLM's OffloadingConnector needs a size: add --kv-offloading-size, GiB."
            )
        shared = shares_copy(deployment, wish)
        whose = "one copy serves all its ranks" if shared else f"{ranks} ranks have a copy each"
        note = f"A chunk is a block of any group; {whose if ranks > 1 else 'alone'}."
        chunk = _aligned(block * (1 if shared else ranks))
        pool = ct.HostPool("chunks of a block", wish.size_bytes // chunk, chunk)
        name, holder, copies = "OffloadingConnector", "replica", wish.node_replicas
    else:
        given = _SIMPLE_BYTES if wish.size_bytes is None else wish.size_bytes
        note = f"{given:,} B are for all {ranks} ranks of a replica."
        pool = ct.HostPool("blocks", max(1, given // ranks // block), block)
        name, holder, copies = "SimpleCPUOffloadConnector", "rank", wish.ranks
    kept = _kept(engine, deployment, pool.pages, wish.retention)
    return ct.HostTier(name, (pool,), copies, kept, holder, (note,))


def _size_lmcache(
    engine: "VllmEngine", deployment: ct.Deployment, wish: ct.HostWish
) -> ct.HostTier:
    """LMCacheMPConnector: a server's memory; LMCacheConnectorV1: memory of the first rank."""
    local, kind = wish.tier == "lmcache-local", deployment.model.kind
    if kind == "v41" and not local:
        raise ConfigError(
            "what LMCache 0.5.6 keeps of V4.1's windows and rings is not known: it is not sized."
        )
    if kind != "flat" and local:
        raise ConfigError(
            "vLLM 0.33 does not start V4 or V4.1 with LMCacheConnectorV1, which turns its hybrid "
            "cache manager off: choose LMCacheMPConnector (--host-tier lmcache)."
        )
    _check_version(engine)
    size, tokens = wish.size_bytes or local * _LOCAL_BYTES, wish.chunk_tokens or LMCACHE_TOKENS
    pool = _chunks(engine, deployment, tokens, size)
    each = f"A token takes {pool.page_bytes / tokens:,.2f} B"
    notes = [f"{each}; one copy serves all tensor parallel ranks."]
    if not size:
        notes.append("LMCache's server has its own size: give --l1-size-gb as --host-size.")
    keeps = {"tokens of context": pool.pages * tokens} if size else {}
    name = "LMCacheConnectorV1" if local else "LMCacheMPConnector"
    return ct.HostTier(name, (pool,), 1, keeps, "server", tuple(notes))


def _chunks(
    engine: "VllmEngine", deployment: ct.Deployment, tokens: int, size_bytes: int
) -> ct.HostPool:
    chunk = _aligned(chunk_bytes(engine.layout(deployment).groups, tokens))
    return ct.HostPool(f"chunks of {tokens:,} tokens", size_bytes // chunk, chunk)


def chunk_bytes(tables: Sequence[LayerGroup], chunk_tokens: int) -> int:
    """Bytes of a chunk, without padding: all of its context, and the windows at its end."""
    total = 0
    for table in tables:
        if chunk_tokens <= 0 or chunk_tokens % table.block_tokens:
            raise ConfigError(
                f"a chunk of {chunk_tokens:,} tokens: LMCache needs a multiple of "
                f"{max(each.block_tokens for each in tables):,}."
            )
        tokens = min(chunk_tokens, table.window_tokens or chunk_tokens)
        used = sum(page.used_bytes for page in table.pages)
        total += tokens // table.block_tokens * used
    return total


def find_objects(
    engine: "VllmEngine",
    deployment: ct.Deployment,
    retention: int | None,
    chunk: int | None,
) -> ct.Offloaded:
    """Chunks of a block, for one copy; or chunks of LMCache, which have the windows inside."""
    if chunk is not None:
        pool = replace(_chunks(engine, deployment, chunk, 0), pages=1)
        block = engine.layout(deployment).groups[0].block_tokens
        return ct.Offloaded((pool,), (), chunk // block, ends_inside=True)
    offloaded_groups(engine, deployment, retention)
    return ct.objects_of(engine.rule(replace(deployment, bounded_replay=None)).layout, _ALIGN)


def _check_version(engine: "VllmEngine") -> None:
    if not engine.release.null_block:
        raise ConfigError(
            f"host memory is sized as {_SINCE} sizes it, not {engine.name}: ask for it."
        )


def offloaded_groups(
    engine: "VllmEngine", deployment: ct.Deployment, retention: int | None = 0
) -> list[Group]:
    """Groups whose blocks hits need: no rings, and no windows that are computed again (V4.1)."""
    _check_version(engine)
    groups = engine.rule(replace(deployment, bounded_replay=None)).layout.groups
    align = groups[0].block_tokens
    if retention and retention % align:
        raise ConfigError(
            f"windows every {retention:,} tokens: vLLM needs a multiple of its block, {align:,}."
        )
    return [group for group in groups if group.cached]


def shares_copy(deployment: ct.Deployment, wish: ct.HostWish) -> bool:
    """Whether all ranks of a replica share one copy: tensor parallel alone, on one node.

    V4.1's ring of states is not known to vLLM as equal on all ranks, nor is AMD's memory shared.
    """
    alike = deployment.model.kind != "v41" and not (deployment.arch or "").startswith("gfx")
    alone = 1 < wish.tp == wish.replica_ranks <= _NODE_RANKS
    return alike and alone


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN) * _ALIGN


def counted_tokens(groups: Sequence[Group], chunks: int, context_tokens: int) -> int:
    """Tokens that vLLM counts for the chunks, in requests of one length."""
    each = 0
    for group in groups:
        seen = context_tokens if group.seen_tokens is None else group.seen_tokens + 1
        each += -(-min(context_tokens, seen) // group.block_tokens)
    return chunks * context_tokens // each


def stored_chunks(group: Group, align: int, prompt_tokens: int, retention: int | None) -> int:
    """Chunks of a group that are stored of a prompt, where hits end at multiples of ``align``.

    Windows are kept at every multiple of ``retention`` tokens (None: every block) and at the end.
    """
    size, need = group.block_tokens, group.needed
    chunks = prompt_tokens // size
    segment = (align if retention is None else retention) // size
    if group.seen_tokens is None or align % size or 0 < segment <= need:
        return chunks
    kept = Retention(segment * size, ends=retention is not None)
    # the boundary behind the prompt's end has blocks of its tail inside the prompt, too
    behind = Retention(segment * size).places(prompt_tokens + segment * size, align)
    ends = {end // size for end in (*kept.places(prompt_tokens, align), *behind)}
    found = {block for end in ends for block in range(max(0, end - need), min(end, chunks))}
    if retention is None:  # the blocks behind the last whole one
        found |= set(range(max(chunks - chunks % segment, chunks - need), chunks))
    return len(found)


def _kept(
    engine: "VllmEngine", deployment: ct.Deployment, chunks: int, retention: int | None
) -> dict[str, int]:
    groups = offloaded_groups(engine, deployment, retention)
    context, align = deployment.max_context_tokens, groups[0].block_tokens
    counted = counted_tokens(groups, chunks, context)
    found = {f"tokens in requests of {context:,}, as vLLM counts": counted}
    windowed = len(groups) > 1
    for every in {retention: 0, None: 0} if windowed else {None: 0}:
        each = sum(stored_chunks(group, align, context, every) for group in groups)
        way = "windows at every block" if every is None else "windows at the end alone"
        way = f"windows every {every:,} tokens" if every else way
        way = f" ({way})" if windowed else ""
        found[f"prompts of {context:,} tokens at {each:,} chunks{way}"] = chunks // max(each, 1)
    return found
