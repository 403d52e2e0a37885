"""Requests that go on behind a prefix which another request has computed."""

import numpy as np
import torch

from dsv4kv.cache.allocator import Ids, as_ids
from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.cache.allocators.refusal import out_of
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

    Whole blocks are shared. The last one is copied where ``tokens`` fill entries of it and not
    all, for this request will write there: its own block takes the page of every layer.

    Args:
        manager: The cache.
        slot: Slot of the request.
        tokens: Tokens it need not compute.
        blocks: int64[n], the prefix's blocks in order: at least those that hold entries of these
            tokens.
        checkpoints: Holds the checkpoint.
        checkpoint: Window and state behind exactly these tokens.
        backend: Copies pages; None where the cache has no data.

    Raises:
        OutOfBlocks: A block is to be copied and none is free beside the prefix's.
        NotOwner: No request runs in the slot, the checkpoint was released, or a block of the
            prefix is free by now.
        CacheError: The slot holds something already, or the blocks are too few.
        In every case, and whatever exception comes in between, the slot holds nothing and every
        block is whose it was.
    """
    table, allocator = shared_table(manager)
    manager.check_running(np.array([slot]))
    checkpoints.check_saved(checkpoint)
    if table.held[slot] or manager.tokens[slot]:
        raise CacheError(f"slot {slot} has tokens already: resume before its first step.")
    block_tokens = manager.plan.schemas[0].block_tokens
    whole, needed = tokens // block_tokens, int(table.blocks_for(np.array(tokens)))
    prefix, own = as_ids(blocks[:needed]), None
    if len(prefix) < needed or not 0 <= tokens <= manager.plan.max_context_tokens:
        raise CacheError(
            f"{len(blocks)} blocks of {block_tokens} tokens and rows of "
            f"{manager.plan.max_context_tokens} cannot hold a prefix of {tokens} tokens. "
            "Nothing was changed."
        )
    try:
        # Its own last block is not made of the prefix's, that which is copied included.
        own = allocator.allocate_memory_blocks(needed - whole, prefix)
        if own is None:
            raise out_of("blocks", 1, allocator.num_free, allocator.num_blocks)
        if needed > whole and backend is not None:
            _copy_pages(manager, backend, prefix[whole:], own)
        checkpoints.restore(checkpoint, slot)
        table.adopt(slot, np.concatenate([prefix[:whole], own]))
        manager.tokens[slot] = tokens
        if needed > whole:
            allocator.release(prefix[whole:])
    except BaseException:
        if own is not None:
            _give_up(manager, slot)
            table.forget(slot)
            allocator.release(np.concatenate([prefix, own]))
        raise


def _give_up(manager: KVCacheManager, slot: int) -> None:
    """Let a slot be as if it had just been admitted."""
    manager.tokens[slot] = 0
    for states in manager.states.values():
        states.reset_slot(slot)


def _copy_pages(manager: KVCacheManager, backend: Backend, sources: Ids, targets: Ids) -> None:
    numbers = [torch.from_numpy(ids).to(manager.device) for ids in (sources, targets)]
    for pool in manager.pools.values():
        for store in (pool.main, pool.indexer):
            if store is not None:
                backend.page_copy(store, *numbers)
