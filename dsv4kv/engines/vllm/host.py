"""vLLM's host memory: blocks of the pool, each as large on the host as on the GPU.

A chunk is one block of one group, so a window's block costs what a block of the whole context
costs. Where every rank keeps the same, one copy serves them all.
Source: vLLM 0.33.0, ``v1/kv_offload/cpu/{spec,common}.py``, ``v1/simple_kv_offload/manager.py``,
``offloading/config.py``, ``reachable_block_mask`` of ``single_type_kv_cache_manager.py``.
"""

from dataclasses import replace

from dsv4kv.engines.contract import Capacity, Deployment
from dsv4kv.engines.host import HostPool, HostTier, HostWish, Offloaded, Sent
from dsv4kv.engines.vllm.pages import Group
from dsv4kv.engines.vllm.sizing import VllmEngine
from dsv4kv.errors import ConfigError

_SINCE = "vllm:0.33"
_ALIGN = 4096  # SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT
_SIMPLE_BYTES = 8 * 2**30  # DEFAULT_CPU_CAPACITY_BYTES
_NODE_RANKS = 8


def size_offloading(
    engine: VllmEngine, deployment: Deployment, capacity: Capacity, wish: HostWish
) -> HostTier:
    """OffloadingConnector: chunks of a region that a replica's ranks share."""
    if not wish.size_bytes:
        raise ConfigError(
            "vLLM's OffloadingConnector needs a size: add --kv-offloading-size, GiB."
        )
    groups = offloaded_groups(engine, deployment, wish.retention)
    shared = shares_copy(deployment, wish)
    copies = 1 if shared else wish.replica_ranks
    chunk = _chunk_bytes(int(capacity.unit_bytes), copies)
    chunks = wish.size_bytes // chunk
    whose = "one copy serves all its ranks" if shared else f"{copies} ranks have a copy each"
    tier = HostTier(
        "OffloadingConnector",
        (HostPool("chunks of a block", chunks, chunk),),
        wish.node_replicas,
        _kept(groups, chunks, deployment.max_context_tokens, wish.retention),
        holder="replica",
        notes=(
            f"A chunk is a block of any group; {whose if wish.replica_ranks > 1 else 'alone'}.",
        ),
    )
    return within_memory(tier, wish)


def size_simple(
    engine: VllmEngine, deployment: Deployment, capacity: Capacity, wish: HostWish
) -> HostTier:
    """SimpleCPUOffloadConnector: blocks of every rank's share of the size."""
    given = _SIMPLE_BYTES if wish.size_bytes is None else wish.size_bytes
    block = int(capacity.unit_bytes)
    blocks = max(1, given // wish.replica_ranks // block)
    groups = offloaded_groups(engine, deployment, wish.retention)
    tier = HostTier(
        "SimpleCPUOffloadConnector",
        (HostPool("blocks", blocks, block),),
        wish.ranks,
        _kept(groups, blocks, deployment.max_context_tokens, wish.retention),
        notes=(f"{given:,} B are for all {wish.replica_ranks} ranks of a replica.",),
    )
    return within_memory(tier, wish)


def check_version(engine: VllmEngine) -> None:
    """Raise ``ConfigError`` for versions whose host memory is not known."""
    if engine.name != _SINCE:
        raise ConfigError(
            f"host memory is sized as {_SINCE} sizes it, not {engine.name}: ask for it."
        )


def offloaded_groups(
    engine: VllmEngine, deployment: Deployment, retention: int | None = 0
) -> list[Group]:
    """Groups whose blocks hits need: no rings, and no windows that are computed again (V4.1)."""
    check_version(engine)
    groups = engine.layout(deployment).groups
    align = groups[0].block_tokens
    if retention and retention % align:
        raise ConfigError(
            f"windows every {retention:,} tokens: vLLM needs a multiple of its block, {align:,}."
        )
    replays = deployment.model.kind == "v41"
    return [group for group in groups if group.whole or not (group.ring or replays)]


def shares_copy(deployment: Deployment, wish: HostWish) -> bool:
    """Whether all ranks of a replica share one copy: tensor parallel alone, on one node.

    V4.1's ring of states is not known to vLLM as equal on all ranks, nor is AMD's memory shared.
    """
    alike = deployment.model.kind != "v41" and not (deployment.arch or "").startswith("gfx")
    alone = 1 < wish.tp == wish.replica_ranks <= _NODE_RANKS
    return alike and alone


def sent_of(engine: VllmEngine, deployment: Deployment, tokens: int) -> Sent | None:
    """What a rank sends of a prompt to the decode side by NIXL; None where not known.

    Of a window the blocks that it covers, and one more; whole pages, each a descriptor.
    Source: ``kv_connector/v1/nixl/{base_scheduler,base_worker}.py``.
    """
    if engine.name != _SINCE or deployment.model.kind == "v41":
        return None
    total = descriptors = 0
    for group in engine.layout(deployment).held:
        blocks = -(-tokens // group.block_tokens)
        if group.window_tokens is not None:
            blocks = min(blocks, -(-group.window_tokens // group.block_tokens) + 1)
        total += blocks * group.page_bytes
        descriptors += blocks * len(group.pages)
    return Sent(total, descriptors)


def offloaded_objects(
    engine: VllmEngine, deployment: Deployment, retention: int | None
) -> Offloaded:
    """Chunks of a block of context, and of a boundary's windows and states; for one copy."""
    groups = offloaded_groups(engine, deployment, retention)
    chunk = _chunk_bytes(engine.layout(deployment).unit_bytes, 1)
    blocks = sum(_tail_blocks(group) for group in groups)
    tail = (HostPool("windows and states", blocks, chunk),) if blocks else ()
    return Offloaded((HostPool("context", 1, chunk),), tail)


def _chunk_bytes(block_bytes: int, copies: int) -> int:
    return -(-block_bytes * copies // _ALIGN) * _ALIGN


def _tail_blocks(group: Group) -> int:
    """Blocks of a group that a hit needs at its end; none of the whole context."""
    if group.window_tokens is None:
        return 0
    return -(-(group.window_tokens - 1) // group.block_tokens)


def counted_tokens(groups: list[Group], chunks: int, context_tokens: int) -> int:
    """Tokens that vLLM counts for chunks, in requests of one length."""
    each = 0
    for group in groups:
        needed = -(-context_tokens // group.block_tokens)
        if group.window_tokens is not None:
            needed = min(needed, -(-group.window_tokens // group.block_tokens))
        each += needed
    return chunks * context_tokens // each


def stored_chunks(group: Group, align: int, prompt_tokens: int, retention: int | None) -> int:
    """Chunks of a group that are stored of a prompt.

    Args:
        group: The group.
        align: Tokens of a block of the whole context, where hits end.
        prompt_tokens: Tokens of the prompt.
        retention: Tokens between the boundaries whose windows are kept, in addition to the last;
            0 keeps only the last, None those of every block.
    """
    chunks, size = prompt_tokens // group.block_tokens, group.block_tokens
    if group.window_tokens is None or align % size:
        return chunks
    need = _tail_blocks(group)
    segment = (align if retention is None else retention) // size
    if segment and need >= segment:
        return chunks
    kept: set[int] = set()
    if segment:
        ends = range(segment, chunks + segment, segment)
        kept = {block for end in ends for block in range(end - need, min(end, chunks))}
    if retention is None:  # the blocks behind the last whole one
        first, last = chunks - chunks % segment, chunks
    else:
        first, last = 0, (prompt_tokens - 1) // align * align // size
    kept |= set(range(max(first, last - need), min(last, chunks)))
    return len(kept)


def _kept(groups: list[Group], chunks: int, context: int, retention: int | None) -> dict[str, int]:
    """Tokens as vLLM counts them, and whole prompts of the context by what is stored of each."""
    align = groups[0].block_tokens
    found = {
        f"tokens in requests of {context:,}, as vLLM counts": counted_tokens(
            groups, chunks, context
        )
    }
    windowed = len(groups) > 1
    for every in {retention: 0, None: 0} if windowed else {None: 0}:
        each = sum(stored_chunks(group, align, context, every) for group in groups)
        way = f" ({_way(every)})" if windowed else ""
        found[f"prompts of {context:,} tokens at {each:,} chunks{way}"] = chunks // max(each, 1)
    return found


def _way(retention: int | None) -> str:
    if retention is None:
        return "windows at every block"
    return f"windows every {retention:,} tokens" if retention else "windows at the end alone"


def within_memory(tier: HostTier, wish: HostWish) -> HostTier:
    """The tier, refused where a node has less memory than it takes."""
    if wish.memory_bytes is None or tier.node_bytes <= wish.memory_bytes:
        return tier
    refusal = (
        f"{tier.name} takes {tier.node_bytes:,} B of a node's memory, of which "
        f"{wish.memory_bytes:,} B are free: give it less."
    )
    return replace(tier, refusal=refusal)
