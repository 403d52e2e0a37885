"""Blocks that are free, referenced or cached, and how they move from one to another.

Free + held + cached = all, always. A held block has references; a cached one has none, but a hash
by which it can be found until its place is needed.

References, hashes and parents of blocks are the truth. All else (the free list, who follows whom,
which blocks a hash finds, the order of eviction) is kept up beside it and can be worked out from
it: so whatever an exception leaves half done is undone by putting the truth back and recounting.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocator import BlockAllocator, Ids
from dsv4kv.cache.allocators.chains import Chains
from dsv4kv.cache.allocators.claims import Claims
from dsv4kv.cache.allocators.hashes import NO_HASH, BlockHashes
from dsv4kv.cache.allocators.leaves import LeafQueue

ReleasePolicy = Literal["lru", "ref_zero"]
Values = Ids | list[int] | int
Parts = tuple[Claims, Chains, BlockHashes, LeafQueue]

_ID_BYTES = 8
_FEW = 8  # evicted one by one in less time than together

Truth = tuple[Ids, NDArray[np.int32] | int | None, Values | None, Values | None]
"""What was true of some blocks: which, their references, hashes and parents.

One value each or one for all; None: it has not changed. A plain tuple, for one is made in every
release.
"""


class BlockStates:
    """Where every block is; all in flat arrays but the map from hashes to blocks."""

    def __init__(self, num_blocks: int, policy: ReleasePolicy) -> None:
        """Start with all blocks free."""
        self.num_blocks = num_blocks
        self.policy = policy
        self._kept: int | None = None  # cached blocks that are not evictable, if that is known
        self.stack = BlockAllocator(num_blocks)
        self.forget()

    def forget(self) -> None:
        """Start anew but for the generations of the free list, which go on."""
        claims = Claims(self.num_blocks)
        chains = Chains(self.num_blocks, claims.live)
        self.parts = claims, chains, BlockHashes(self.num_blocks + 1), LeafQueue(chains)
        self.recount()

    @property
    def parts(self) -> Parts:
        """All but the free list, which follows from them."""
        return self.claims, self.chains, self.hashes, self.cached

    @parts.setter
    def parts(self, parts: Parts) -> None:
        self.claims, self.chains, self.hashes, self.cached = parts
        self.refs = self.claims.refs

    @property
    def num_evictable(self) -> int:
        """Cached blocks that no referenced block follows."""
        return len(self.cached) - self._num_kept()

    def num_needed(self, blocks: Ids) -> int:
        """Evictable blocks that would not be if ``blocks`` had a reference more each.

        They and all before them.
        """
        if kept := self._num_kept():
            return self.chains.num_kept(self.cached.blocks(), blocks.tolist()) - kept
        needed, parent, cached = set[int](), self.chains.parent_at, self.cached
        for block in blocks.tolist():
            while block not in needed and block in cached:
                needed.add(block)
                block = parent[block]  # noqa: PLW2901
        return len(needed)

    def hold_again(self, blocks: Ids) -> None:
        """Cached, distinct blocks have got a reference."""
        self.cached.remove(blocks)
        self.chains.wake(blocks)
        if self._kept != 0 or not self.refs[self.chains.parent[blocks]].all():
            self._kept = None

    def register(self, block: int, hash_: int, parent: int) -> None:
        """Give a referenced block a hash, and the block it follows (or the chains' root)."""
        self.hashes.add(block, hash_)
        self.chains.link(block, parent)
        if not self.refs[parent]:
            self._kept = None

    def is_whole(self, ids: Ids) -> bool:
        """Whether a whole chain would lose its last references: by far the most common release.

        A registered chain to its end, held once, of which nothing else lives. Then its blocks are
        in range and distinct, too: each is the parent of the next. ``IndexError`` beyond the pool.
        """
        if self.policy != "lru" or not ids.size or ids.item(-1) < 0:
            return False
        if not self.hashes.of_block_at[ids.item(0)] or not self.claims.are_chain(ids):
            return False
        return ids.tobytes().startswith(self.chains.parent[ids].tobytes()[_ID_BYTES:])

    def put_down_chain(self, ids: Ids) -> None:
        """Cache a whole chain that loses its last references."""
        chains = self.chains
        self.claims.clear(ids)
        chains.live_at[chains.parent_at[ids.item(0)]] -= 1
        self.cached.add(ids)
        if self._kept != 0:
            self._kept = None

    def put_down(self, ids: Ids) -> Ids:
        """Cache or free blocks that lose their last reference; refuse what is not held.

        Distinct blocks in the order of their chain: the last is the first to go. Returns those
        that had a hash and are free.
        """
        num_known = np.count_nonzero(self.hashes.of_block[ids]) if self.hashes else 0
        if not num_known:
            self.stack.release(ids)
            self.refs[ids] = 0
            return ids[:0]
        self.stack.check_held(ids)
        self.refs[ids] = 0
        if num_known < ids.size:
            known = self.hashes.of_block[ids] != NO_HASH
            self.stack.release(ids[~known])
            ids = ids[known]
        self.chains.rest(ids)
        if self.policy == "ref_zero":
            self._free(ids)
            return ids
        self.cached.add(ids)
        if self._kept != 0 or self.chains.live[ids].any():
            self._kept = None
        return ids[:0]

    def evict(self, count: int) -> Truth:
        """Free the oldest leaves; ``num_evictable`` must be at least ``count``."""
        before: Truth | None = None
        hashes, chains = self.hashes, self.chains
        try:
            if count > _FEW:
                ids = self.cached.take(count)
                before = self._truth(ids)
                hashes.drop(ids)
                chains.parent[ids] = chains.root
                self.stack.release(ids)
                return before
            blocks, known, parents = list[int](), list[int](), list[int]()
            for _ in range(count):
                block = self.cached.take_one()
                blocks.append(block)
                known.append(hashes.of_block_at[block])
                parents.append(chains.parent_at[block])
            before = np.array(blocks, dtype=np.int64), None, known, parents
            for block in blocks:
                hashes.drop_one(block)
                chains.parent_at[block] = chains.root
                self.stack.release_one(block)
            return before
        except BaseException:
            self.undo(before)
            raise

    def before_freeing(self, ids: Ids, refs: NDArray[np.int32] | int) -> Truth:
        """What ``undo`` needs if distinct blocks with so many references are put down."""
        if self.policy == "lru" or not self.hashes:
            return ids, refs, None, None
        followers = np.count_nonzero(np.isin(self.chains.parent[ids], ids))
        if self.chains.children[ids].sum() > followers:  # others will be cut off
            cut = np.flatnonzero(np.isin(self.chains.parent, ids))
            ids = np.union1d(ids, cut)
        return self._truth(ids)

    def undo(self, before: Truth | None) -> None:
        """Put the truth back as far as it was changed, and make all else follow from it."""
        if before is not None:
            blocks, refs, hashes, parents = before
            if refs is not None:
                self.refs[blocks] = refs
            if hashes is not None:
                self.hashes.of_block[blocks] = hashes
            if parents is not None:
                self.chains.parent[blocks] = parents
        self.recount()

    def recount(self) -> None:
        """Make everything follow from references, hashes and parents."""
        known, held = self.hashes.of_block != NO_HASH, self.refs > 0
        self.chains.recount(known, held)
        self.hashes.recount()
        self.cached.recount(known & ~held)
        self.stack.restock(~(known | held)[:-1])
        self._kept = None

    def _num_kept(self) -> int:
        """Cached blocks that are not evictable; looked for when that may have changed."""
        if self._kept is None:
            self._kept = self.chains.num_kept(self.cached.blocks())
        return self._kept

    def _truth(self, blocks: Ids) -> Truth:
        return blocks, self.refs[blocks], self.hashes.of_block[blocks], self.chains.parent[blocks]

    def _free(self, ids: Ids) -> None:
        self.chains.part(self.chains.parent[ids])
        self.chains.parent[ids] = self.chains.root
        if self.chains.children[ids].any():
            self.chains.cut_below(ids)
        self.hashes.drop(ids)
        self.stack.release(ids)
        self._kept = None
