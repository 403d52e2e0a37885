"""The hit rate of a least-recently-used cache at every capacity."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.prefix.analysis.paths import Ints
from dsv4kv.prefix.analysis.reuse import Reuse


@dataclass(frozen=True)
class Curve:
    """Hits by capacity, exact at every capacity.

    Between two corners the number of hit blocks grows in a straight line.

    Attributes:
        references: Blocks of all prompts.
        corners: int64[corners]: capacities in blocks, rising from 0.
        hit_blocks: int64[corners]: blocks found at each.
    """

    references: int
    corners: Ints
    hit_blocks: Ints

    def hits_at(self, capacity_blocks: Ints) -> NDArray[np.float64]:
        """Blocks found at any capacities, as whole numbers in floats."""
        return np.interp(capacity_blocks, self.corners, self.hit_blocks)

    def capacity_for(self, share: float) -> int | None:
        """The smallest capacity in blocks that reaches a share of the most that can be hit."""
        wanted = share * int(self.hit_blocks[-1])
        if not wanted:
            return None
        at = int(np.searchsorted(self.hit_blocks, wanted))
        rise = self.hit_blocks[at] - self.hit_blocks[at - 1]
        run = self.corners[at] - self.corners[at - 1]
        step = (wanted - self.hit_blocks[at - 1]) * run / rise
        return int(self.corners[at - 1] + np.ceil(step))


def trace_curve(reuse: Reuse) -> Curve:
    """Sum up all stretches: one is found from ``above`` on, block by block, until its end."""
    length = reuse.end - reuse.begin
    places = np.concatenate([reuse.above, reuse.above + length])
    slopes = np.concatenate([np.ones_like(length), -np.ones_like(length)])
    corners, inverse = np.unique(np.concatenate([[0], places]), return_inverse=True)
    slope = np.bincount(inverse[1:], slopes, len(corners)).cumsum().astype(np.int64)
    hits = np.concatenate([[0], np.cumsum(slope[:-1] * np.diff(corners))])
    return Curve(int(reuse.blocks.sum()), corners, hits)


def pick_capacities(reuse: Reuse, points: int) -> Sequence[int]:
    """Capacities worth showing, in blocks: from the longest prompt to just below all there is."""
    low = max(1, int(reuse.blocks.max()))
    high = int((reuse.above + reuse.end - reuse.begin).max(initial=low))
    return [int(c) for c in np.unique(np.geomspace(low, max(low, high), points + 1).round())][:-1]
