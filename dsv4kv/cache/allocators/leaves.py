"""Cached blocks in order of their last use, leaves first, in flat arrays."""

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocator import Ids
from dsv4kv.cache.allocators.chains import Chains

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

    def recount(self, resting: NDArray[np.bool_]) -> None:
        """Hold the blocks of ``resting``, bool[blocks + 1], whatever an interruption left.

        What was entered stays entered until all is renumbered: so those that are back have their
        old place. Those that never were in the queue become the newest.
        """
        start = self._newest
        entries = self._queue[start:][::-1]  # oldest first: of several of a block the last counts
        self._position[:] = _NOWHERE
        self._position[entries] = self._numbers[start:][::-1]
        self._position[~resting] = _NOWHERE
        self._oldest = len(self._queue)
        self._aside.clear()
        self._count = int(np.count_nonzero(self._position != _NOWHERE))
        self.add(np.flatnonzero(resting & (self._position == _NOWHERE)))

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
