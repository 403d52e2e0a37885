"""Copies of a request's window and compressor state: what its blocks alone do not bring back.

Compressed entries of a prefix stay valid in their blocks. To resume after it a request also needs
the last window entries and the groups that are not complete yet, in every layer, as they were at
that position (arXiv:2606.19348, 3.5.2). Checkpoints are at multiples of 128 tokens, where HCA
layers have no such group: their state, the larger part of a slot, is not copied.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.blocks import BlockPool, Ids, as_ids
from dsv4kv.cache.manager import BlockTable, KVCacheManager, StateCachePool
from dsv4kv.errors import CacheError, ConfigError, OutOfBlocks
from dsv4kv.model.plan import CHECKPOINT_TOKENS, at_whole_block
from dsv4kv.ops.spec import Backend


class CheckpointPool:
    """Room for ``count`` checkpoints on the device of the cache; made once, like every pool."""

    def __init__(self, manager: KVCacheManager, count: int) -> None:
        """Allocate checkpoints of the manager's layers; without data only their numbers."""
        self.count, device = count, manager.device
        self._manager = manager
        self._numbers = BlockPool(count, unit="checkpoints")
        schemas = [at_whole_block(schema) for schema in manager.plan.schemas]
        self._pools = {
            attn: StateCachePool([s for s in schemas if s.layer.attn is attn], count, device)
            for attn in manager.states
        }

    @property
    def num_free(self) -> int:
        return self._numbers.num_free

    def save(self, slot: int) -> int:
        """Copy a slot's window and state; returns the checkpoint's number.

        Raises ``CacheError`` unless its tokens are a multiple of 128, and ``OutOfBlocks``.
        """
        tokens = int(self._manager.tokens[slot])
        if tokens % CHECKPOINT_TOKENS:
            raise CacheError(
                f"slot {slot} has {tokens} tokens: checkpoints are at multiples of "
                f"{CHECKPOINT_TOKENS}."
            )
        checkpoint = int(self._numbers.acquire(1)[0])
        for theirs, mine in self._pairs():
            mine[checkpoint].copy_(theirs[slot], non_blocking=True)
        return checkpoint

    def restore(self, checkpoint: int, slot: int) -> None:
        """Put a checkpoint back, into any slot; raises ``NotOwner`` if it was released."""
        self._numbers.check_held(np.array([checkpoint]))
        for theirs, mine in self._pairs():
            theirs[slot].copy_(mine[checkpoint], non_blocking=True)

    def release(self, checkpoint: int) -> None:
        self._numbers.release(np.array([checkpoint]))

    def resume(
        self, slot: int, tokens: int, blocks: Ids, checkpoint: int, backend: Backend | None
    ) -> None:
        """Give a request that was just admitted the first ``tokens`` tokens of a cached prefix.

        Whole blocks are shared. The last one is copied where ``tokens`` fill entries of it and not
        all, for this request will write there: its own block takes the page of every layer.

        blocks: int64[n], the prefix's in order, enough for these tokens.
        checkpoint: window and state after exactly these tokens.
        backend: copies pages; None where the cache has no data.

        Raises:
            OutOfBlocks: A block is to be copied, and only the prefix's own are free.
            NotOwner: A slot without request, a released checkpoint, or a free block in the prefix.
            CacheError: The slot holds something already, or the blocks are too few. Nothing has
                changed, as in every case.
        """
        manager, (table, allocator) = self._manager, shared_table(self._manager)
        manager.check_running(np.array([slot]))
        self._numbers.check_held(np.array([checkpoint]))
        if table.held[slot] or manager.tokens[slot]:
            raise CacheError(f"slot {slot} has tokens already: resume before its first step.")
        block_tokens = manager.plan.schemas[0].block_tokens
        whole, needed = tokens // block_tokens, table.group.blocks_for(tokens)
        prefix = as_ids(blocks[:needed])
        if len(prefix) < needed or not 0 <= tokens <= manager.plan.max_context_tokens:
            raise CacheError(
                f"{len(blocks)} blocks of {block_tokens} tokens and rows of "
                f"{manager.plan.max_context_tokens} cannot hold a prefix of {tokens} tokens. "
                "Nothing was changed."
            )
        # Its own last block is not made of the prefix's, that which is copied included.
        own = allocator.allocate(needed - whole, prefix)
        if own is None:
            raise OutOfBlocks(
                f"1 block is needed and {allocator.num_free} of {allocator.num_blocks} are free: "
                "raise cache.num_blocks, or lower concurrency or context. Nothing was changed."
            )
        if needed > whole and backend is not None:
            sources, targets = (
                torch.from_numpy(each).to(manager.device) for each in (prefix[whole:], own)
            )
            for pool in manager.pools.values():
                for store in filter(None, (pool.main, pool.indexer)):
                    backend.page_copy(store=store, sources=sources, targets=targets)
        self.restore(checkpoint, slot)
        table.adopt(slot, np.concatenate([prefix[:whole], own]))
        manager.tokens[slot] = tokens
        if needed > whole:
            allocator.release(prefix[whole:])

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for attn, mine in self._pools.items():
            theirs = self._manager.states[attn]
            for ring, copy in zip(theirs.windows, mine.windows, strict=True):
                yield ring.pages, copy.pages
            states = theirs.states() if mine.states() else []
            for state, copied in zip(states, mine.states(), strict=True):
                yield state.transpose(0, 1), copied.transpose(0, 1)  # slots before layers


def shared_table(manager: KVCacheManager) -> tuple[BlockTable, BlockPool]:
    """The one table whose blocks requests can share, and its pool; raises ``ConfigError``."""
    if len(manager.tables) != 1 or manager.tables[0].group.lanes != 1:
        raise ConfigError(
            "requests share blocks where one table serves the whole model: set cache.sharing to "
            "model, or cache.prefix.index to none."
        )
    return manager.tables[0], manager.tables[0].allocator
