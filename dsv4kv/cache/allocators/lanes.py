"""Several allocators side by side, for pools whose layers each have blocks of their own."""

from collections.abc import Callable

import numpy as np

from dsv4kv.cache.allocators.contract import Allocator, not_owner
from dsv4kv.cache.allocators.stack import Ids


class InLanes:
    """Several allocators of one kind as one; ids are int64[lanes, n].

    The lanes always have as many free, so that what one refuses for lack of ids all refuse.
    """

    def __init__(self, lanes: int, make: Callable[[], Allocator]) -> None:
        """Make an allocator for every lane."""
        self._each = [make() for _ in range(lanes)]
        self.lanes = lanes
        self.num_blocks = self._each[0].num_blocks

    @property
    def num_free(self) -> int:
        """Ids of each lane that ``acquire`` can hand out."""
        return self._each[0].num_free

    @property
    def num_held(self) -> int:
        """Ids of each lane that are out."""
        return self._each[0].num_held

    def acquire(self, count: int) -> Ids:
        """Take ``count`` ids of every lane: int64[lanes, count]."""
        return np.stack([lane.acquire(count) for lane in self._each])

    def release(self, ids: Ids, generations: Ids | None = None) -> int:
        """Give ids back, shaped as ``acquire`` returned them; all lanes or none."""
        self.check_held(ids)
        if generations is not None and not np.array_equal(self.generation(ids), generations):
            raise not_owner("blocks", ids, "not all are still held by who took them")
        freed = [lane.release(part) for lane, part in zip(self._each, ids, strict=True)]
        return freed[0]

    def num_freed(self, ids: Ids) -> int:
        """Ids of each lane that ``release`` of held ``ids`` would free, at least."""
        return min(lane.num_freed(part) for lane, part in zip(self._each, ids, strict=True))

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every id is held and none is named twice."""
        for lane, part in zip(self._each, self._shaped(ids), strict=True):
            lane.check_held(part)

    def generation(self, ids: Ids) -> Ids:
        """Generations, shaped as ``ids``."""
        parts = zip(self._each, self._shaped(ids), strict=True)
        return np.stack([lane.generation(part) for lane, part in parts])

    def _shaped(self, ids: Ids) -> Ids:
        if ids.ndim != 2 or len(ids) != self.lanes:
            raise not_owner("blocks", ids, f"shape {ids.shape} is not that of {self.lanes} lanes")
        return ids


def in_lanes(lanes: int, make: Callable[[], Allocator]) -> Allocator:
    """One allocator, or as many as there are lanes."""
    return make() if lanes == 1 else InLanes(lanes, make)
