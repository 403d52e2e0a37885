"""A stack of free block ids, flat in the size of the pool.

Blocks can have *lanes*: one id per layer, taken and given back in step, when every layer has a
table of its own. With one lane an allocator is the plain free list.
"""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, NotOwner, OutOfBlocks

Ids = NDArray[np.int64]


class _Numbers:
    """Distinct numbers that are no index of ``size`` marks.

    The first ``count`` of them lie ready, as callers ask for as many again and again.
    """

    def __init__(self, size: int) -> None:
        self.every = np.arange(size, 2 * size, dtype=np.int64)
        self.take(0)

    def take(self, count: int) -> None:
        """Make the first ``count`` numbers ready."""
        self.count = count
        self.taken = self.every[:count]
        self.taken_bytes = self.taken.tobytes()


class BlockAllocator:
    """Hands out blocks and takes them back, refusing what it did not hand out.

    All calls copy: the caller never sees the free list itself. A refusal changes nothing.
    A block's generation grows whenever it is handed out, so that an old holder can be told from
    a new one.
    """

    def __init__(self, num_blocks: int, lanes: int = 1, unit: str = "blocks") -> None:
        """Start with all ``num_blocks`` blocks of every lane free; lower ids are taken first.

        ``unit`` is what messages call them: request slots are allocated the same way.
        """
        if num_blocks <= 0 or lanes <= 0:
            raise ConfigError(f"a pool of {num_blocks} {unit} cannot be: give at least 1.")
        self.unit = unit
        self.num_blocks = num_blocks
        self.lanes = lanes
        self._num_free = num_blocks
        descending = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        self._free = descending if lanes == 1 else np.tile(descending, (lanes, 1))
        self._lane_start = (np.arange(lanes, dtype=np.int64) * num_blocks)[:, None]
        size = lanes * num_blocks
        # A block that is out is marked with its own index, a free one with a number that is no
        # index. Comparing marks with indices so finds all that are not held; negative ids too,
        # although they count from the end. Comparing bytes is several times faster than
        # comparing arrays and reducing the result.
        self._numbers = _Numbers(size)
        self._mark = self._numbers.every.copy()
        self._mark_at, self._free_at = self._mark.data, self._free.data  # single cells, faster
        self._generation = np.zeros(size, dtype=np.int64)
        self._serial = 0

    @property
    def num_free(self) -> int:
        """Free blocks of each lane."""
        return self._num_free

    @property
    def num_held(self) -> int:
        """Blocks of each lane that are out."""
        return self.num_blocks - self._num_free

    def generation(self, ids: Ids) -> Ids:
        """Generations of blocks, shaped as ``ids``; ``NotOwner`` beyond the pool."""
        try:
            return self._generation[self._flatten(ids)].reshape(ids.shape)
        except IndexError:
            raise self._refusal(ids, "not all exist") from None

    def acquire(self, count: int) -> Ids:
        """Take ``count`` blocks: int64[count], or int64[lanes, count] with several lanes.

        Raises:
            OutOfBlocks: Fewer are free.
        """
        end = self._num_free
        if not 0 <= count <= end:
            raise OutOfBlocks(
                f"{count} {self.unit} are needed and {end} of {self.num_blocks} are free: "
                "raise cache.num_blocks, or lower concurrency or context."
            )
        self._num_free = end - count
        self._serial += 1
        ids: Ids = self._free[..., end - count : end].copy()
        flat = ids if self.lanes == 1 else self._flatten(ids)
        self._mark[flat] = flat
        self._generation[flat] = self._serial
        return ids

    def release(self, ids: Ids, generations: Ids | None = None) -> None:
        """Give blocks back; shaped as ``acquire`` returned them, in any order and number.

        Raises:
            NotOwner: A block is out of range, free, named twice, or, with ``generations`` (as
                told when it was acquired), held by a newer holder.
        """
        if generations is not None and not np.array_equal(self.generation(ids), generations):
            raise self._refusal(ids, "not all are still held by who took them")
        self._mark_free(ids)
        start, count = self._num_free, self._numbers.count
        if self.lanes == 1:
            self._num_free = start + count
            self._free[start : start + count] = ids
        else:
            self._num_free = start + count // self.lanes
            self._free[:, start : self._num_free] = ids

    def release_one(self, block: int) -> None:
        """Give back a block of the only lane that is known to be held: nothing is checked."""
        self._mark_at[block] = len(self._mark_at)  # no index
        self._free_at[self._num_free] = block
        self._num_free += 1

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every block is held and none is named twice."""
        flat = self._mark_free(ids)
        self._mark[flat] = flat

    def _mark_free(self, ids: Ids) -> Ids:
        """Mark held, distinct blocks free and return their index; refuse any others."""
        flat = ids if ids.ndim == self.lanes == 1 else self._flatten(ids)
        mark, numbers = self._mark, self._numbers
        if flat.size != numbers.count:
            numbers.take(flat.size)
        try:
            if mark[flat].tobytes() != flat.tobytes():
                raise self._refusal(ids, "not all are held")
            # Each gets a number of its own; one named twice no longer has its first.
            mark[flat] = numbers.taken
        except (IndexError, ValueError):  # beyond the pool, or more than there are
            raise self._refusal(ids, "not all are held") from None
        if mark[flat].tobytes() != numbers.taken_bytes:
            mark[flat] = flat
            raise self._refusal(ids, "one is named twice")
        return flat

    def _flatten(self, ids: Ids) -> Ids:
        """Index of each lane's ids into the marks; ids outside their lane are refused."""
        if ids.ndim != self._free.ndim or (self.lanes > 1 and len(ids) != self.lanes):
            raise self._refusal(ids, f"shape {ids.shape} is not that of {self.lanes} lanes")
        if self.lanes == 1:
            return ids
        if ids.size and not (ids.min() >= 0 and ids.max() < self.num_blocks):
            raise self._refusal(ids, f"not all are in 0..{self.num_blocks - 1}")
        flat: Ids = (ids + self._lane_start).ravel()
        return flat

    def _refusal(self, ids: Ids, reason: str) -> NotOwner:
        shown = ", ".join(str(i) for i in ids.ravel()[:8])
        more = ", …" if ids.size > 8 else ""
        return NotOwner(f"{self.unit} {shown}{more}: {reason}. Nothing was changed.")
