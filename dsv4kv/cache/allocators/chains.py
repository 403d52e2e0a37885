"""Which block follows which: registered blocks as chains, in flat arrays."""

from collections.abc import Iterable
from itertools import chain

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

    def recount(self, known: NDArray[np.bool_], held: NDArray[np.bool_]) -> None:
        """Count followers anew, of which ``known`` are registered and ``held`` referenced."""
        self.parent[~known] = self.root
        size = self.root + 1
        self.children[:] = np.bincount(self.parent[known], minlength=size)
        self.live[:] = np.bincount(self.parent[known & held], minlength=size)

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
