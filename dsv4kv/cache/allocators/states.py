"""Blocks that are free, referenced or cached, and how they move from one to another.

Free + held + cached = all, always. A held block has references; a cached one has none, but a hash
by which it can be found until its place is needed.

References, hashes and parents of blocks are the truth. All else (the free list, who follows whom,
which blocks a hash finds, the order of eviction) follows from it and is updated along with it.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocators.stack import BlockAllocator, Ids

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


class Chains:
    """Parents of registered blocks, and how many follow each.

    Arrays have a cell more than there are blocks: the last belongs to what a chain's first block
    follows, so that no block needs a special case. Single cells are read and written through views
    (``…_at``), several times as fast as through arrays.

    Attributes:
        parent: int64[blocks + 1], the block before.
        children: int64[blocks + 1], registered blocks that follow.
        live: int32[blocks + 1], those of them that are referenced.
        root: What first blocks follow: the index of the last cell.
    """

    def __init__(self, num_blocks: int, live: NDArray[np.int32]) -> None:
        """Start without chains; ``live`` is kept up to date and must be zero."""
        self.root = num_blocks
        self.parent = np.full(num_blocks + 1, num_blocks, dtype=np.int64)
        self.children = np.zeros(num_blocks + 1, dtype=np.int64)
        self.live = live
        self.parent_at = self.parent.data
        self.children_at = self.children.data
        self.live_at = self.live.data
        self._ones = np.ones(num_blocks + 1, dtype=np.int32)

    def link(self, block: int, parent: int) -> None:
        """A referenced block follows another (or ``root``)."""
        self.parent_at[block] = parent
        self.children_at[parent] += 1
        self.live_at[parent] += 1

    def part(self, parents: Ids) -> None:
        """Blocks lose a follower, for each time they are named, that nobody references."""
        np.subtract.at(self.children, parents, self._ones[: parents.size])

    def join(self, parents: Ids) -> None:
        """Undo ``part``."""
        np.add.at(self.children, parents, self._ones[: parents.size])

    def cut_below(self, blocks: Ids) -> None:
        """What follows some blocks begins chains of its own; reads all blocks."""
        followers = np.isin(self.parent, blocks)
        self.parent[followers] = self.root
        self.children[blocks] = self.live[blocks] = 0

    def rest(self, blocks: Ids) -> None:
        """Blocks lost their last reference."""
        np.subtract.at(self.live, self.parent[blocks], self._ones[: blocks.size])

    def wake(self, blocks: Ids) -> None:
        """Blocks without a reference got one."""
        np.add.at(self.live, self.parent[blocks], self._ones[: blocks.size])

    def num_kept(self, resting: Ids, held: Iterable[int] = ()) -> int:
        """How many of the blocks nobody references have a referenced one somewhere after them.

        ``held`` are resting ones that count as referenced; they are kept, too.
        """
        idle = np.zeros(self.root + 1, dtype=np.bool_)
        idle[resting] = True
        waiting, parent, kept = bytearray(idle), self.parent_at, 0
        for block in chain(resting[self.live[resting] > 0].tolist(), held):
            while waiting[block]:
                waiting[block] = False
                kept += 1
                block = parent[block]  # noqa: PLW2901
        return kept


class Claims:
    """Both counts side by side, so that those of a chain are read, compared and cleared at once.

    There is a cell more than there are blocks, for what first blocks of chains follow: never
    without a reference.

    Attributes:
        refs: int32[blocks + 1], references.
        live: int32[blocks + 1], registered blocks that follow and are referenced.
    """

    def __init__(self, num_blocks: int) -> None:
        """Start without references."""
        self._both = np.zeros(num_blocks + 1, dtype=np.int64)
        self.refs, self.live = _halves(self._both)
        self.refs[-1] = 1
        # Comparing bytes is several times faster than comparing arrays and reducing the result.
        self._ones = np.ones(num_blocks, dtype=np.int32).tobytes()
        held = np.zeros(num_blocks, dtype=np.int64)
        refs, live = _halves(held)
        refs[:] = live[:] = 1
        live[-1] = 0
        self._chain = held.tobytes()

    def are_last(self, ids: Ids) -> bool:
        """Whether every block has one reference; ``IndexError`` beyond the pool."""
        return self._ones.startswith(self.refs[ids].tobytes())

    def are_chain(self, ids: Ids) -> bool:
        """Whether every block has one reference and one referenced follower, but none the last."""
        return self._chain.endswith(self._both[ids].tobytes())

    def clear(self, ids: Ids) -> None:
        """Leave blocks without references, of their own and of what follows."""
        self._both[ids] = 0


def _halves(cells: Ids) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Two int32[n] in the memory of one int64[n]."""
    pairs = cells.view(np.int32).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


_NOWHERE = -1


class LeafQueue:
    """A queue by last use in which entries go stale instead of being searched for.

    A block's position names its one valid entry. A block that comes up while others follow it
    steps aside until the last of them is gone, and is then the next to go. Everything is O(1)
    amortised but for those, which pass a heap.

    The queue goes downwards, the newest entry has the lowest position: so chains, of which the
    last block goes first, lie in it as they are. Reversing them would take as long as the rest.
    """

    def __init__(self, chains: Chains) -> None:
        """Start empty, for all blocks of ``chains``."""
        self._chains = chains
        size = 4 * chains.root + 64
        self._position = np.full(chains.root + 1, _NOWHERE, dtype=np.int64)
        self._queue = np.zeros(size, dtype=np.int64)
        self._numbers = np.arange(size, dtype=np.int64)
        self._position_at, self._queue_at = self._position.data, self._queue.data
        self._oldest = self._newest = size  # entries are from the newest up to below the oldest
        self._aside: list[tuple[int, int]] = []  # minus the position, and the block
        self._count = 0

    def __len__(self) -> int:
        """Blocks in the queue."""
        return self._count

    def __contains__(self, block: int) -> bool:
        """Whether a block is in the queue."""
        return self._position_at[block] != _NOWHERE

    def blocks(self) -> Ids:
        """Blocks in the queue, ascending."""
        return np.flatnonzero(self._position != _NOWHERE)

    def add(self, blocks: Ids) -> None:
        """Enter distinct blocks as the newest, the last to go first."""
        start = self._newest - blocks.size
        if start < 0:
            self._renumber()
            start = self._newest - blocks.size
        self._queue[start : self._newest] = blocks
        self._position[blocks] = self._numbers[start : self._newest]
        self._count += blocks.size
        self._newest = start  # last: only now are the entries there

    def remove(self, blocks: Ids) -> None:
        """Take distinct blocks out."""
        self._position[blocks] = _NOWHERE
        self._count -= blocks.size

    def renew(self, blocks: Ids) -> None:
        """Make distinct blocks of the queue its newest, the last to go first."""
        self.remove(blocks)
        self.add(blocks)

    def take(self, count: int) -> Ids:
        """Take out the oldest blocks that leave no follower behind.

        At least ``count`` blocks must be without a referenced follower. They count as followers
        no more, but still have their parents.
        """
        taken = None if self._aside else self._take_together(count)
        if taken is None:
            return np.array([self.take_one() for _ in range(count)], dtype=np.int64)
        self._count -= count
        return taken

    def take_one(self) -> int:
        """Take out the oldest block that leaves no follower behind; see ``take``."""
        chains = self._chains
        block = self._next_leaf()
        self._count -= 1
        self._position_at[block] = _NOWHERE
        parent = chains.parent_at[block]
        followers = chains.children_at[parent] - 1
        chains.children_at[parent] = followers
        if not followers and (position := self._position_at[parent]) >= self._oldest:
            heappush(self._aside, (-position, parent))
        return block

    def _take_together(self, count: int) -> Ids | None:
        """The oldest ``count`` at once, where these are whole ends of chains; None elsewhere.

        None, too, where one is the last that a block was waiting for which came up before.
        """
        chains, start = self._chains, max(self._newest, self._oldest - 2 * count)
        window = self._queue[start : self._oldest]
        entries = self._numbers[start : self._oldest]
        valid = np.flatnonzero(self._position[window] == entries)[: -count - 1 : -1]
        if len(valid) < count:
            return None
        blocks = window[valid]
        parents = chains.parent[blocks]
        chains.part(parents)
        waited = parents[self._position[parents] >= self._oldest]
        if chains.children[blocks].any() or not chains.children[waited].all():
            chains.join(parents)
            return None
        self._position[blocks] = _NOWHERE
        self._oldest = start + int(valid[-1])
        return blocks

    def _next_leaf(self) -> int:
        """The oldest of those that stepped aside, else the first in the queue that is a leaf."""
        children, positions = self._chains.children_at, self._position_at
        while self._aside:
            position, block = heappop(self._aside)
            if positions[block] == -position and not children[block]:
                return block
        while True:
            self._oldest -= 1
            block = self._queue_at[self._oldest]
            if positions[block] == self._oldest and not children[block]:
                return block

    def _renumber(self) -> None:
        """Start the queue anew with what is in it; those aside come first again."""
        blocks = self.blocks()
        blocks = blocks[np.argsort(self._position[blocks])]
        start = len(self._queue) - len(blocks)
        self._position[blocks] = self._numbers[start:]
        self._queue[start:] = blocks
        self._oldest, self._newest = len(self._queue), start
        self._aside.clear()


ReleasePolicy = Literal["lru", "ref_zero"]

_ID_BYTES = 8
_FEW = 8  # evicted one by one in less time than together


class BlockStates:
    """Where every block is; all in flat arrays but the map from hashes to blocks."""

    def __init__(self, num_blocks: int, policy: ReleasePolicy) -> None:
        """Start with all blocks free."""
        self.num_blocks = num_blocks
        self.policy = policy
        self._kept: int | None = 0  # cached blocks that are not evictable, if that is known
        self.stack = BlockAllocator(num_blocks)
        self.forget()

    def forget(self) -> None:
        """Forget all but the free list."""
        self.claims = Claims(self.num_blocks)
        self.refs = self.claims.refs
        self.chains = Chains(self.num_blocks, self.claims.live)
        self.hashes = BlockHashes(self.num_blocks + 1)
        self.cached = LeafQueue(self.chains)
        self._kept = 0

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

    def evict(self, count: int) -> Ids:
        """Free the oldest leaves and return them; ``num_evictable`` must be at least ``count``."""
        hashes, chains, stack = self.hashes, self.chains, self.stack
        if count > _FEW:
            ids = self.cached.take(count)
            hashes.drop(ids)
            chains.parent[ids] = chains.root
            stack.release(ids)
            return ids
        blocks = [self.cached.take_one() for _ in range(count)]
        for block in blocks:
            hashes.drop_one(block)
            chains.parent_at[block] = chains.root
            stack.release_one(block)
        return np.array(blocks, dtype=np.int64)

    def _num_kept(self) -> int:
        """Cached blocks that are not evictable; looked for when that may have changed."""
        if self._kept is None:
            self._kept = self.chains.num_kept(self.cached.blocks())
        return self._kept

    def _free(self, ids: Ids) -> None:
        self.chains.part(self.chains.parent[ids])
        self.chains.parent[ids] = self.chains.root
        if self.chains.children[ids].any():
            self.chains.cut_below(ids)
        self.hashes.drop(ids)
        self.stack.release(ids)
        self._kept = None
