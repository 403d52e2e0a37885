"""The blocks behind the prefix index's keys, and the requests' tables that name them."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocator import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.resume import shared_table
from dsv4kv.errors import CacheError

_NO_BLOCKS: Ids = np.empty(0, dtype=np.int64)


class SharedBlocks:
    """Blocks of every key that is cached; each counts as a holder of its own."""

    def __init__(self, manager: KVCacheManager, per_shared: int) -> None:
        """A key stands for ``per_shared`` blocks."""
        self._table, self._allocator = shared_table(manager)
        self._per_shared = per_shared
        self._blocks: dict[int, Ids] = {}
        self._ever_dropped: set[int] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._blocks

    @property
    def num_blocks(self) -> int:
        """Blocks of all keys."""
        return len(self._blocks) * self._per_shared

    def blocks(self, keys: Ids) -> Ids:
        """Blocks of keys int64[n] in order: int64[n × blocks of a key].

        Raises:
            CacheError: A key has none.
        """
        if unknown := [key for key in keys.tolist() if key not in self._blocks]:
            raise CacheError(f"the shared block {unknown[0]} has no blocks of the cache.")
        return np.concatenate([_NO_BLOCKS, *(self._blocks[key] for key in keys.tolist())])

    def keep(self, slot: int, keys: Ids, first: int) -> None:
        """Hold the blocks of a slot that keys stand for, from its shared block ``first`` on.

        Keys that have blocks already keep those.
        """
        for place, key in enumerate(keys.tolist(), start=first):
            if key not in self._blocks:
                columns = slice(place * self._per_shared, (place + 1) * self._per_shared)
                blocks = self._table.blocks[0, slot, columns].astype(np.int64)
                self._allocator.retain_memory_blocks(blocks)
                self._blocks[key] = blocks

    def drop(self, keys: Iterable[int]) -> None:
        """Give the blocks of evicted keys back."""
        for key in keys:
            self._allocator.release(self._blocks.pop(key))
            self._ever_dropped.add(key)

    def were_dropped(self, keys: Ids) -> NDArray[np.bool_]:
        """bool[n]: whether the blocks of keys int64[n] were ever evicted."""
        dropped = self._ever_dropped
        return np.fromiter((key in dropped for key in keys.tolist()), np.bool_, len(keys))

    def share(self, slot: int, keys: Ids, tokens: int) -> None:
        """Let a slot name the blocks of keys, as far as its first ``tokens`` tokens fill blocks.

        Its own blocks there, which say the same, go back.
        """
        blocks = self.blocks(keys)[: tokens // self._block_tokens]
        row = self._table.blocks[0, slot, : self._table.held[slot]].astype(np.int64)
        if np.array_equal(row[: len(blocks)], blocks):
            return
        row[: len(blocks)] = blocks
        self._allocator.retain_memory_blocks(row)
        self._table.clear(slot)
        self._table.adopt(slot, row)

    @property
    def _block_tokens(self) -> int:
        group = self._table.group
        return group.ratio * group.entries_per_block
