"""LMCache behind vLLM: chunks of many tokens, each with the windows and states of its end.

Its server keeps one copy for all tensor parallel ranks, which hold the same.
Source: LMCache 0.5.6, ``v1/kv_layer_groups.py``, ``v1/multiprocess/object_group_transfer.py``,
``v1/memory_management.py``, ``integration/vllm``; vLLM 0.33.0, ``config/vllm.py``.
"""

from collections.abc import Sequence

from dsv4kv.engines.contract import Capacity, Deployment
from dsv4kv.engines.host import HostPool, HostTier, HostWish, Offloaded
from dsv4kv.engines.vllm.host import check_version, within_memory
from dsv4kv.engines.vllm.pages import Group
from dsv4kv.engines.vllm.sizing import VllmEngine
from dsv4kv.errors import ConfigError

CHUNK_TOKENS = 256
_ALIGN = 4096  # AddressManager.ALIGN_BYTES
_LOCAL_BYTES = 5 * 2**30  # max_local_cpu_size


def size_server(
    engine: VllmEngine, deployment: Deployment, capacity: Capacity, wish: HostWish
) -> HostTier:
    """LMCacheMPConnector: chunks in a server's memory, whose size is its own."""
    del capacity
    if deployment.model.kind == "v41":
        raise ConfigError(
            "what LMCache 0.5.6 keeps of V4.1's windows and rings is not known: it is not sized."
        )
    size = wish.size_bytes or 0
    notes = (
        () if size else ("LMCache's server has its own size: give --l1-size-gb as --host-size.",)
    )
    return _tier("LMCacheMPConnector", engine, deployment, wish, size, notes)


def size_local(
    engine: VllmEngine, deployment: Deployment, capacity: Capacity, wish: HostWish
) -> HostTier:
    """LMCacheConnectorV1: chunks in the memory of the first rank."""
    del capacity
    if deployment.model.kind != "flat":
        raise ConfigError(
            "vLLM 0.33 does not start V4 or V4.1 with LMCacheConnectorV1, which turns its hybrid "
            "cache manager off: choose LMCacheMPConnector (--host-tier lmcache)."
        )
    size = wish.size_bytes or _LOCAL_BYTES
    return _tier("LMCacheConnectorV1", engine, deployment, wish, size, ())


def chunk_objects(engine: VllmEngine, deployment: Deployment, chunk_tokens: int) -> Offloaded:
    """Chunks, each an object with the windows and states of its end."""
    groups = engine.layout(deployment).groups
    size = _aligned(chunk_bytes(groups, chunk_tokens))
    chunk = HostPool(f"chunks of {chunk_tokens:,} tokens", 1, size)
    return Offloaded((chunk,), (), chunk_tokens // groups[0].block_tokens, ends_inside=True)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN) * _ALIGN


def chunk_bytes(groups: Sequence[Group], chunk_tokens: int) -> int:
    """Bytes of a chunk: whole of the context, of a window what it ends with; without padding.

    Raises:
        ConfigError: A chunk that is no multiple of every block.
    """
    total = 0
    for group in groups:
        if chunk_tokens <= 0 or chunk_tokens % group.block_tokens:
            raise ConfigError(
                f"a chunk of {chunk_tokens:,} tokens: LMCache needs a multiple of "
                f"{max(each.block_tokens for each in groups):,}."
            )
        tokens = min(chunk_tokens, group.window_tokens or chunk_tokens)
        used = sum(page.used_bytes for page in group.pages)
        total += tokens // group.block_tokens * used
    return total


def _tier(
    name: str,
    engine: VllmEngine,
    deployment: Deployment,
    wish: HostWish,
    size_bytes: int,
    notes: tuple[str, ...],
) -> HostTier:
    check_version(engine)
    tokens = wish.chunk_tokens or CHUNK_TOKENS
    aligned = _aligned(chunk_bytes(engine.layout(deployment).groups, tokens))
    chunks = size_bytes // aligned
    pool = HostPool(f"chunks of {tokens:,} tokens", chunks, aligned)
    one = f"A token takes {aligned / tokens:,.2f} B; one copy serves all tensor parallel ranks."
    keeps = {"tokens of context": chunks * tokens} if size_bytes else {}
    return within_memory(
        HostTier(name, (pool,), 1, keeps, holder="server", notes=(one, *notes)), wish
    )
