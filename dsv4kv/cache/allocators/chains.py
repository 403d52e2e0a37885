"""Which block follows which: registered blocks as chains, in flat arrays."""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.cache.allocator import Ids


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

    def unlink(self, blocks: Ids) -> None:
        """Blocks that nobody references leave their chains."""
        np.subtract.at(self.children, self.parent[blocks], self._ones[: blocks.size])
        self.parent[blocks] = self.root

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

    def num_kept(self, resting: Ids) -> int:
        """How many of the blocks nobody references have a referenced one somewhere after them."""
        idle = np.zeros(self.root + 1, dtype=np.bool_)
        idle[resting] = True
        kept = np.zeros(self.root + 1, dtype=np.bool_)
        above = resting[self.live[resting] > 0]
        while len(above):
            kept[above] = True
            above = np.unique(self.parent[above])
            above = above[idle[above] & ~kept[above]]
        return int(np.count_nonzero(kept))
