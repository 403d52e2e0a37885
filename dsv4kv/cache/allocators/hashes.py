"""Hashes of blocks, and which block has a hash."""

from collections.abc import Iterable

import numpy as np

from dsv4kv.cache.allocator import Ids

NO_HASH = 0


class BlockHashes:
    """Whole numbers that stand for a block and its history; 0 and −1 stand for none.

    Several blocks may have one hash, where requests computed the same at the same time: one of
    them is found, and when it goes another takes its place.
    """

    def __init__(self, num_blocks: int) -> None:
        """Start without hashes."""
        self.of_block = np.zeros(num_blocks, dtype=np.int64)
        self.of_block_at = self.of_block.data  # single cells, faster than the array's
        self._blocks: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}

    def __bool__(self) -> bool:
        """Whether any block has a hash."""
        return bool(self._blocks)

    def find(self, hash_: int) -> int | None:
        """A block with the hash."""
        return self._blocks.get(hash_)

    def prefix(self, hashes: Iterable[int]) -> Ids:
        """Blocks of the hashes up to the first that no block has: int64[n]."""
        found = []
        for hash_ in hashes:
            block = self._blocks.get(hash_)
            if block is None:
                break
            found.append(block)
        return np.array(found, dtype=np.int64)

    def add(self, block: int, hash_: int) -> None:
        """Give a block without a hash one."""
        self.of_block_at[block] = hash_
        if self._blocks.setdefault(hash_, block) != block:
            self._twins.setdefault(hash_, []).append(block)

    def drop(self, blocks: Ids) -> None:
        """Forget the hashes of blocks that have one."""
        hashes = self.of_block[blocks].tolist()
        if self._twins:
            for block, hash_ in zip(blocks.tolist(), hashes, strict=True):
                self._forget(block, hash_)
        else:
            for hash_ in hashes:
                del self._blocks[hash_]
        self.of_block[blocks] = NO_HASH

    def drop_one(self, block: int) -> None:
        """Forget the hash of a block that has one."""
        self._forget(block, self.of_block_at[block])
        self.of_block_at[block] = NO_HASH

    def recount(self) -> None:
        """Find blocks by the hashes they have, whatever an interruption left."""
        found, twins = dict[int, int](), dict[int, list[int]]()
        for block in np.flatnonzero(self.of_block).tolist():
            hash_ = self.of_block_at[block]
            if found.setdefault(hash_, block) != block:
                twins.setdefault(hash_, []).append(block)
        for hash_, others in twins.items():
            first = self._blocks.get(hash_)
            if first in others:  # goes on being the one that is found
                others[others.index(first)], found[hash_] = found[hash_], first
        self._blocks, self._twins = found, twins

    def _forget(self, block: int, hash_: int) -> None:
        twins = self._twins.get(hash_)
        if twins is None:
            del self._blocks[hash_]
            return
        if self._blocks[hash_] == block:
            self._blocks[hash_] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[hash_]
