"""A stack of free block ids, flat in the size of the pool.

Blocks can have *lanes*: one id per layer, taken and given back in step, when every layer has a
table of its own. With one lane an allocator is the plain free list.
"""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, NotOwner, OutOfBlocks

Ids = NDArray[np.int64]
INT64 = np.dtype(np.int64)


class BlockAllocator:
    """Hands out blocks and takes them back, refusing what it did not hand out.

    All calls copy: the caller never sees the free list itself. A refusal changes nothing.
    A block's generation grows whenever it is handed out, so that an old holder can be
    distinguished from a new one.
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
        self._numbers = np.arange(size, 2 * size, dtype=np.int64)
        self._first = self._numbers[:0], b""  # as many as were asked for last, and their bytes
        self._mark = self._numbers.copy()
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
            return self._generation[self._flatten(as_ids(ids))].reshape(ids.shape)
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
        start = end - count
        ids: Ids = self._free[..., start:end].copy()
        flat = ids if self.lanes == 1 else self._flatten(ids)
        self._serial += 1
        self._generation[flat] = self._serial
        self._mark[flat] = flat
        self._num_free = start
        return ids

    def release(self, ids: Ids, generations: Ids | None = None) -> int:
        """Give blocks back; shaped as ``acquire`` returned them, in any order and number.

        Returns how many of each lane are free for it.

        Raises:
            NotOwner: A block is out of range, free, named twice, or, with ``generations`` (as
                returned when it was acquired), held by a newer holder.
        """
        if generations is not None and not np.array_equal(self.generation(ids), generations):
            raise self._refusal(ids, "not all are still held by who took them")
        start = self._num_free
        end = start + self._mark_free(ids).size // self.lanes
        self._free[..., start:end] = ids
        self._num_free = end
        return end - start

    def release_one(self, block: int) -> None:
        """Give back a block of the only lane that is known to be held: nothing is checked."""
        self._mark_at[block] = len(self._mark_at)  # no index
        self._free_at[self._num_free] = block
        self._num_free += 1

    def num_freed(self, ids: Ids) -> int:
        """Blocks of each lane that ``release`` of held ``ids`` would free: all."""
        return ids.size // self.lanes

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every block is held and none is named twice."""
        flat = self._mark_free(ids)
        self._mark[flat] = flat

    def _mark_free(self, ids: Ids) -> Ids:
        """Mark held, distinct blocks free and return their index; refuse any others."""
        flat = ids if ids.ndim == self.lanes == 1 else self._flatten(ids)
        if flat.dtype is not INT64:
            flat = as_ids(flat)
        mark, (numbers, as_bytes) = self._mark, self._first
        if flat.size != len(numbers):
            numbers = self._numbers[: flat.size]
            as_bytes = numbers.tobytes()
            self._first = numbers, as_bytes
        try:
            if mark[flat].tobytes() != flat.tobytes() or flat.size > len(numbers):
                raise self._refusal(ids, "not all are held")
        except IndexError:  # beyond the pool
            raise self._refusal(ids, "not all are held") from None
        # Each gets a number of its own; one named twice no longer has its first.
        mark[flat] = numbers
        if mark[flat].tobytes() == as_bytes:
            return flat
        mark[flat] = flat
        raise self._refusal(ids, "one is named twice")

    def _flatten(self, ids: Ids) -> Ids:
        """Index of each lane's ids into the marks; ids outside their lane are refused."""
        if ids.ndim != self._free.ndim or (self.lanes > 1 and len(ids) != self.lanes):
            raise self._refusal(ids, f"shape {ids.shape} is not that of {self.lanes} lanes")
        if self.lanes == 1:
            return ids
        ids = as_ids(ids)
        if ids.size and not (ids.min() >= 0 and ids.max() < self.num_blocks):
            raise self._refusal(ids, f"not all are in 0..{self.num_blocks - 1}")
        flat: Ids = (ids + self._lane_start).ravel()
        return flat

    def _refusal(self, ids: Ids, reason: str) -> NotOwner:
        shown = ", ".join(str(i) for i in ids.ravel()[:8])
        more = ", …" if ids.size > 8 else ""
        return NotOwner(f"{self.unit} {shown}{more}: {reason}. Nothing was changed.")


def as_ids(ids: NDArray[np.integer]) -> Ids:
    """Ids of any type of whole numbers as int64; ``NotOwner`` if they are none."""
    if ids.dtype is INT64:
        return ids  # type: ignore[return-value]
    if ids.size and ids.dtype.kind not in "iu":
        raise NotOwner(f"ids must be whole numbers, not {ids.dtype}. Nothing was changed.")
    return ids.astype(np.int64)
