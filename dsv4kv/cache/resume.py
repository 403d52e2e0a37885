"""Requests that go on behind a prefix which another request has computed."""

import numpy as np
import torch

from dsv4kv.cache.allocator import Ids
from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.table import BlockTable
from dsv4kv.errors import CacheError, ConfigError
from dsv4kv.ops.contract import Backend


def shared_table(manager: KVCacheManager) -> tuple[BlockTable, RefCountAllocator]:
    """The one table whose blocks requests can share, and who counts them.

    Raises:
        ConfigError: There are several tables, or their allocator knows no references.
    """
    allocator = manager.tables[0].allocator
    if len(manager.tables) != 1 or not isinstance(allocator, RefCountAllocator):
        raise ConfigError(
            "requests share blocks where one table serves the whole model and references are "
            "counted: set cache.sharing to model and cache.allocator to refcount, or "
            "cache.prefix.index to none."
        )
    return manager.tables[0], allocator


def resume_request(
    manager: KVCacheManager,
    slot: int,
    tokens: int,
    blocks: Ids,
    checkpoints: CheckpointPool,
    checkpoint: int,
    backend: Backend | None,
) -> None:
    """Give a request that was just admitted the first ``tokens`` tokens of a cached prefix.

    Whole blocks are shared. The last one is copied where ``tokens`` end inside it, for this
    request will write there: its own block takes the page of every layer.

    Args:
        manager: The cache.
        slot: Slot of the request.
        tokens: Tokens it need not compute.
        blocks: int64[at least ceil(tokens / block tokens)], the prefix's blocks, in order.
        checkpoints: Holds the checkpoint.
        checkpoint: Window and state behind exactly these tokens.
        backend: Copies pages; None where the cache has no data.

    Raises:
        OutOfBlocks: A block is to be copied and none is free; nothing has changed.
        CacheError: The slot holds something already.
    """
    table, allocator = shared_table(manager)
    if table.held[slot] or manager.tokens[slot]:
        raise CacheError(f"slot {slot} has tokens already: resume before its first step.")
    block_tokens = manager.plan.schemas[0].block_tokens
    whole, rest = divmod(tokens, block_tokens)
    own = allocator.acquire(1) if rest else np.empty(0, dtype=np.int64)
    allocator.retain_memory_blocks(blocks[:whole])
    table.adopt(slot, blocks[:whole])
    if rest:
        table.append(slot, own)
        if backend is not None:
            _copy_pages(manager, backend, blocks[whole : whole + 1], own)
    checkpoints.restore(checkpoint, slot)
    manager.tokens[slot] = tokens


def _copy_pages(manager: KVCacheManager, backend: Backend, sources: Ids, targets: Ids) -> None:
    numbers = [torch.from_numpy(ids).to(manager.device) for ids in (sources, targets)]
    for pool in manager.pools.values():
        for store in (pool.main, pool.indexer):
            if store is not None:
                backend.page_copy(store, *numbers)
