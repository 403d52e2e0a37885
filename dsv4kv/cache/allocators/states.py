"""Blocks that are free, referenced or cached, and how they move from one to another.

Free + held + cached = all, always. A held block has references; a cached one has none, but a hash
by which it can be found until its place is needed.
"""

from typing import Literal

import numpy as np

from dsv4kv.cache.allocator import BlockAllocator, Ids
from dsv4kv.cache.allocators.chains import Chains
from dsv4kv.cache.allocators.claims import Claims
from dsv4kv.cache.allocators.hashes import BlockHashes
from dsv4kv.cache.allocators.leaves import LeafQueue

ReleasePolicy = Literal["lru", "ref_zero"]

_ID_BYTES = 8
_FEW = 8  # evicted one by one in less time than together


class BlockStates:
    """Where every block is; all in flat arrays but the map from hashes to blocks."""

    def __init__(self, num_blocks: int, policy: ReleasePolicy) -> None:
        """Start with all blocks free."""
        self.num_blocks = num_blocks
        self.policy = policy
        self.stack = BlockAllocator(num_blocks)
        self.forget()

    def forget(self) -> None:
        """Start anew but for the free list, whose generations go on."""
        self.claims = Claims(self.num_blocks)
        self.refs = self.claims.refs
        self.chains = Chains(self.num_blocks, self.claims.live)
        self.hashes = BlockHashes(self.num_blocks + 1)
        self.cached = LeafQueue(self.chains)
        self._astray = False  # whether a block may be referenced while one before it is not

    @property
    def num_evictable(self) -> int:
        """Cached blocks that no referenced block follows."""
        if not self._astray:
            return len(self.cached)
        kept = self.chains.num_kept(self.cached.blocks())
        self._astray = kept > 0
        return len(self.cached) - kept

    def hold_again(self, blocks: Ids) -> None:
        """Cached, distinct blocks have got a reference."""
        self.cached.remove(blocks)
        self.chains.wake(blocks)
        parents = self.chains.parent[blocks]
        self._astray = self._astray or not self.refs[parents].all()

    def register(self, block: int, hash_: int, parent: int) -> None:
        """Give a referenced block a hash, and the block it follows (−1: none)."""
        self.hashes.add(block, hash_)
        self.chains.link(block, parent)
        self._astray = self._astray or not self.refs[parent]

    def put_down_chain(self, ids: Ids) -> bool:
        """Cache a whole chain that loses its last references: by far the most common case.

        Returns:
            False, and nothing is done, if it is none; ``IndexError`` beyond the pool.
        """
        if self.policy != "lru" or not self._is_whole(ids):
            return False
        chains = self.chains
        self.claims.clear(ids)
        chains.live_at[chains.parent_at[ids.item(0)]] -= 1
        self.cached.add(ids)
        return True

    def put_down(self, ids: Ids) -> None:
        """Cache or free blocks that lose their last reference; refuse what is not held.

        Distinct blocks in the order of their chain: the last is the first to go.
        """
        num_known = np.count_nonzero(self.hashes.of_block[ids]) if self.hashes else 0
        if not num_known:
            self.stack.release(ids)
            self.refs[ids] = 0
            return
        self.stack.check_held(ids)
        self.refs[ids] = 0
        if num_known < ids.size:
            known = self.hashes.of_block[ids] != 0
            self.stack.release(ids[~known])
            ids = ids[known]
        self.chains.rest(ids)
        if self.policy == "ref_zero":
            self._free(ids)
            return
        self.cached.add(ids)
        self._astray = self._astray or bool(self.chains.live[ids].any())

    def evict(self, count: int) -> Ids:
        """Free the oldest leaves; ``num_evictable`` must be at least ``count``."""
        if count > _FEW:
            ids = self.cached.take(count)
            self.hashes.drop(ids)
            self.stack.release(ids)
            return ids
        blocks = [self.cached.take_one() for _ in range(count)]
        for block in blocks:
            self.hashes.drop_one(block)
            self.stack.release_one(block)
        return np.array(blocks, dtype=np.int64)

    def _is_whole(self, ids: Ids) -> bool:
        """Whether ids are a registered chain to its end, held once, of which nothing else lives.

        Then they are in range and distinct, too: each is the parent of the next.
        """
        if not ids.size or ids.item(-1) < 0 or not self.hashes.of_block_at[ids.item(0)]:
            return False
        if not self.claims.are_chain(ids):
            return False
        return ids.tobytes().startswith(self.chains.parent[ids].tobytes()[_ID_BYTES:])

    def _free(self, ids: Ids) -> None:
        self.chains.unlink(ids)
        if self.chains.children[ids].any():
            self.chains.cut_below(ids)
        self.hashes.drop(ids)
        self.stack.release(ids)
