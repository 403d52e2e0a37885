"""Copies of a request's window and compressor state: what its blocks alone do not bring back.

Compressed entries of a prefix stay valid in their blocks. To go on behind it a request also needs
the last window entries and the groups that are not complete yet, in every layer, as they were at
that position (arXiv:2606.19348, 3.5.2). Checkpoints are at multiples of 128 tokens, where HCA
layers have no such group: their state, the larger part of a slot, is not copied.
"""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from dsv4kv.cache.allocator import BlockAllocator, Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.pools import StateCachePool
from dsv4kv.errors import CacheError
from dsv4kv.model.checkpoint import CHECKPOINT_TOKENS, at_whole_block


class CheckpointPool:
    """Room for ``count`` checkpoints on the device of the cache; made once, like every pool."""

    def __init__(self, manager: KVCacheManager, count: int) -> None:
        """Allocate checkpoints of the manager's layers; without data only their numbers."""
        self.count = count
        self._manager = manager
        self._numbers = BlockAllocator(count, unit="checkpoints")
        by_type = {
            attn: [at_whole_block(s) for s in manager.plan.schemas if s.layer.attn is attn]
            for attn in manager.states
        }
        self._pools = {
            attn: StateCachePool(schemas, count, manager.device)
            for attn, schemas in by_type.items()
        }

    @property
    def num_free(self) -> int:
        """Checkpoints that can still be saved."""
        return self._numbers.num_free

    def save(self, slot: int) -> int:
        """Copy what a slot needs to go on from here; returns the checkpoint's number.

        Raises:
            CacheError: The slot's tokens are no multiple of 128: more would be pending.
            OutOfBlocks: All are taken: release one first.
        """
        tokens = int(self._manager.tokens[slot])
        if tokens % CHECKPOINT_TOKENS:
            raise CacheError(
                f"slot {slot} has {tokens} tokens: checkpoints are at multiples of "
                f"{CHECKPOINT_TOKENS}."
            )
        taken: Ids | None = None
        try:
            taken = self._numbers.acquire(1)
            checkpoint = int(taken[0])
            for theirs, mine in self._pairs():
                mine[checkpoint].copy_(theirs[slot], non_blocking=True)
            return checkpoint
        except BaseException:
            if taken is not None:
                self._numbers.release(taken)
            raise

    def restore(self, checkpoint: int, slot: int) -> None:
        """Put a checkpoint back, into any slot; raises ``NotOwner`` if it was released."""
        self.check_saved(checkpoint)
        for theirs, mine in self._pairs():
            theirs[slot].copy_(mine[checkpoint], non_blocking=True)

    def check_saved(self, checkpoint: int) -> None:
        """Raise ``NotOwner`` if a checkpoint was released, or never saved."""
        self._numbers.check_held(np.array([checkpoint]))

    def release(self, checkpoint: int) -> None:
        """Give a checkpoint's room back."""
        self._numbers.release(np.array([checkpoint]))

    def memory_bytes(self) -> int:
        """Bytes allocated."""
        return sum(pool.memory_bytes() for pool in self._pools.values())

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What checkpoints hold, the cache's and ours, by slot and by checkpoint."""
        for attn, mine in self._pools.items():
            theirs = self._manager.states[attn]
            for ring, copy in zip(theirs.windows, mine.windows, strict=True):
                yield ring.pages, copy.pages
            states = theirs.states() if mine.states() else []
            for state, copied in zip(states, mine.states(), strict=True):
                yield state.transpose(0, 1), copied.transpose(0, 1)  # slots before layers
