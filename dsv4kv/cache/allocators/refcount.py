"""``refcount``: blocks with several holders, kept for reuse when the last one is done.

Methods keep the names of the engine whose behaviour they have, beside those every allocator has.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from dsv4kv.cache.allocator import Ids
from dsv4kv.cache.allocators.counted import CountedBlocks
from dsv4kv.cache.allocators.observers import Observers
from dsv4kv.cache.allocators.refusal import not_owner, out_of
from dsv4kv.cache.allocators.registration import plan_registration
from dsv4kv.cache.allocators.routing import RoutingStore
from dsv4kv.cache.allocators.states import ReleasePolicy

NO_BLOCKS: Ids = np.zeros(0, dtype=np.int64)


class RefCountAllocator(CountedBlocks):
    """Hands out, shares, caches and evicts ``CountedBlocks``.

    Attributes:
        observers: Told of every change once it is made.
        routing: Experts chosen per block, if the model has any: forgotten when a block is handed
            out again.
    """

    def __init__(
        self,
        total_blocks: int,
        policy: ReleasePolicy = "lru",
        routing: RoutingStore | None = None,
    ) -> None:
        """Start with all blocks free.

        Args:
            total_blocks: The dummy included.
            policy: ``lru`` caches a registered block when its last holder is done, ``ref_zero``
                frees it at once.
            routing: Where experts are kept.
        """
        super().__init__(total_blocks, policy)
        self.routing = routing
        self.observers = Observers()

    def acquire(self, count: int) -> Ids:
        """Take ``count`` blocks, evicting if need be; ``OutOfBlocks`` if that is not enough."""
        ids = self.allocate_memory_blocks(count)
        if ids is None:
            raise out_of("blocks", count, self.num_free, self.num_blocks)
        return ids

    def allocate_memory_blocks(self, count: int, matched: Ids = NO_BLOCKS) -> Ids | None:
        """Take ``count`` blocks, evicting if need be.

        Args:
            count: Blocks to take.
            matched: Blocks the same request found cached. They are retained first, so that room
                is not made of them; if there is no memory, nothing is.

        Returns:
            int64[count], each with one reference, or None if there is not enough memory.
        """
        states = self._states
        if matched.size:
            resting = np.unique(matched[self.refs(matched) == 0])
            if not self.is_memory_available(count, len(resting)):
                return None
            self.retain_memory_blocks(matched)
        short = count - states.stack.num_free
        if count < 0 or (short > 0 and not self.evict_lru_blocks(short)):
            if matched.size:
                self.release_memory_blocks(matched)
            return None
        ids = states.stack.acquire(count)
        states.refs[ids] = 1
        if self.routing is not None:
            self.routing.drop(ids)
        self.observers.tell("acquired", ids)
        return ids

    def retain_memory_blocks(self, ids: Ids) -> None:
        """Add a reference to held or cached blocks, one for each time a block is named.

        Raises:
            NotOwner: A block is free or out of range.
        """
        states = self._states
        _check_row(ids)
        blocks, counts = _count_each(ids)
        states.stack.check_held(blocks)
        resting = blocks[states.refs[blocks] == 0]
        states.refs[blocks] += counts
        if resting.size:
            states.hold_again(resting)
        self.observers.tell("retained", ids)

    def release(self, ids: Ids, generations: Ids | None = None) -> None:
        """Drop a reference of each block; see ``release_memory_blocks``."""
        if generations is not None and not np.array_equal(self.generation(ids), generations):
            raise not_owner("blocks", ids, "not all are still held by who took them")
        self.release_memory_blocks(ids)

    def release_memory_blocks(self, ids: Ids) -> None:
        """Drop a reference of each block, one for each time it is named.

        Ids in the order of their chain. A block without references is cached if it is registered
        (unless the policy is ``ref_zero``), the last of a chain to go first, and free otherwise.

        Raises:
            NotOwner: A block is out of range or has fewer references.
        """
        _check_row(ids)
        try:
            if not self._states.put_down_chain(ids):
                self._release_each(ids)
        except IndexError:
            raise not_owner("blocks", ids, "not all are held") from None
        self.observers.tell("released", ids)

    def _release_each(self, ids: Ids) -> None:
        states = self._states
        if states.claims.are_last(ids):
            states.put_down(ids)
            return
        blocks, counts = _count_each(ids)
        states.stack.check_held(blocks)
        left = states.refs[blocks] - counts
        if (left < 0).any():
            raise not_owner("blocks", ids, "one has fewer references than it is named")
        states.refs[blocks] = left
        done = blocks[left == 0]
        if done.size:
            states.put_down(done)

    def register_kv_block_hashes(
        self, ids: Ids, hashes: Sequence[int], parent_hashes: Sequence[int]
    ) -> None:
        """Let blocks be found by hashes of their tokens and history.

        Args:
            ids: Referenced blocks.
            hashes: Their hashes: int64, neither 0 nor −1.
            parent_hashes: Hashes of the blocks before them; 0 for first ones.

        Raises:
            NotOwner: A block is not referenced.
            CacheError: A block has another hash, or the block before it has none. Nothing is
                changed.
        """
        self.check_held(np.unique(ids))
        for block, hash_, parent in plan_registration(self._states, ids, hashes, parent_hashes):
            self._states.register(block, hash_, parent)
        self.observers.tell("registered", ids)

    def find_kv_blocks(self, hashes: Sequence[int]) -> Ids:
        """Blocks of a chain of hashes up to the first unknown one: int64[n]; retain them next."""
        return self._states.hashes.prefix(hashes)

    def update_timestamps(self, ids: Ids) -> None:
        """Make cached blocks the newest; held ones become so when they are released."""
        self.generation(ids)
        cached = self._states.cached
        blocks = np.array([block for block in ids.tolist() if block in cached], dtype=np.int64)
        cached.remove(blocks)
        cached.add(blocks)

    def evict_lru_blocks(self, count: int) -> bool:
        """Free the cached blocks used longest ago, leaves first; False, and none, if too few."""
        if count > self._states.num_evictable:
            return False
        ids = self._states.evict(count)
        self.observers.tell("evicted", ids)
        return True

    def reset(self) -> None:
        """Free everything; whoever held blocks holds them no more."""
        states = self._states
        out = np.union1d(np.flatnonzero(states.refs[:-1]), states.cached.blocks())
        states.stack.release(out)
        states.forget()
        if self.routing is not None:
            self.routing.drop(out)
        self.observers.tell("reset", out)


def _count_each(ids: Ids) -> tuple[Ids, Ids]:
    """Distinct ids in the order they are first named, and how often each is."""
    counts = Counter(ids.tolist())
    if len(counts) == ids.size:
        return ids, np.ones(ids.size, dtype=np.int64)
    return np.array(list(counts)), np.array(list(counts.values()))


def _check_row(ids: Ids) -> None:
    if ids.ndim != 1:
        raise not_owner("blocks", ids, f"shape {ids.shape} is not one row")
