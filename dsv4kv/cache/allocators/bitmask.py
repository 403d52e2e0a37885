"""``bitmask``: a mask of free slots; the lowest free one is taken first.

A slot's version grows whenever it is handed out, and only then: content recorded as (slot,
version) is valid while the version is the same, even after the slot was freed. ``occupy`` takes
such a slot again without ending that.
"""

import numpy as np

from dsv4kv.cache.allocators.contract import Allocator, not_owner, out_of
from dsv4kv.cache.allocators.lanes import in_lanes
from dsv4kv.cache.allocators.stack import Ids, as_ids
from dsv4kv.errors import ConfigError

_PAGE = 4096
NO_SLOT = -1


class SlotAllocator:
    """Free slots as a mask, in pages: which pages may have one is one whole number's bits.

    The lowest free slot is found in a page, whatever the number of pages.
    """

    def __init__(self, max_slots: int, unit: str = "slots") -> None:
        """Start with all slots free, at version 0; ``unit`` is what messages call them."""
        if max_slots <= 0:
            raise ConfigError(f"{max_slots} {unit} cannot be: give at least 1.")
        self.unit = unit
        self.num_blocks = max_slots
        self.lanes = 1
        self._free = np.ones(max_slots, dtype=np.bool_)
        self._num_free = max_slots
        self._pages = (1 << -(-max_slots // _PAGE)) - 1
        self._version = np.zeros(max_slots, dtype=np.int64)

    @property
    def free_count(self) -> int:
        """Free slots."""
        return self._num_free

    @property
    def num_free(self) -> int:
        """Free slots."""
        return self._num_free

    @property
    def num_held(self) -> int:
        """Slots that are out."""
        return self.num_blocks - self._num_free

    def alloc(self) -> int:
        """Take the lowest free slot and bump its version; ``NO_SLOT`` if none is free."""
        return int(self.acquire(1)[0]) if self._num_free else NO_SLOT

    def free(self, slot: int) -> None:
        """Give a slot back; ``NotOwner`` if it is not held."""
        self.release(np.array([slot], dtype=np.int64))

    def occupy(self, slot: int) -> None:
        """Take a free slot whose content stays valid; ``NotOwner`` if it is not free."""
        if not self.is_free(slot):
            raise not_owner(self.unit, np.array([slot]), "it is held already")
        self._take(np.array([slot]))

    def is_free(self, slot: int) -> bool:
        """Whether a slot is free; ``NotOwner`` beyond the slots."""
        return bool(self._free[self._known(slot)])

    def version(self, slot: int) -> int:
        """How often a slot has been handed out; ``NotOwner`` beyond the slots."""
        return int(self._version[self._known(slot)])

    def generation(self, ids: Ids) -> Ids:
        """Versions of slots, int64[n]; ``NotOwner`` beyond the slots."""
        return self._version[self._checked(ids)]

    def acquire(self, count: int) -> Ids:
        """Take the ``count`` lowest free slots: int64[count], ascending.

        Raises:
            OutOfBlocks: Fewer are free.
        """
        if not 0 <= count <= self._num_free:
            raise out_of(self.unit, count, self._num_free, self.num_blocks)
        ids, self._pages = self._lowest(count)
        self._version[ids] += 1
        self._take(ids)
        return ids

    def release(self, ids: Ids, generations: Ids | None = None) -> int:
        """Give slots back; returns how many.

        Raises:
            NotOwner: A slot is out of range, free, named twice, or of a newer version.
        """
        ids = as_ids(ids)
        self.check_held(ids)
        if generations is not None and not np.array_equal(self._version[ids], generations):
            raise not_owner(self.unit, ids, "not all are still held by who took them")
        for page in set((ids // _PAGE).tolist()):
            self._pages |= 1 << page  # may have one; looked at when it is the lowest
        self._free[ids] = True
        self._num_free += ids.size
        return ids.size

    def num_freed(self, ids: Ids) -> int:
        """Slots that ``release`` of held ``ids`` would free: all."""
        return ids.size

    def check_held(self, ids: Ids) -> None:
        """Raise ``NotOwner`` unless every slot is held and none is named twice."""
        ids = self._checked(ids)
        if self._free[ids].any():
            raise not_owner(self.unit, ids, "not all are held")
        if len(set(ids.tolist())) < ids.size:
            raise not_owner(self.unit, ids, "one is named twice")

    def _lowest(self, count: int) -> tuple[Ids, int]:
        """The lowest free slots, and the pages that may have one once they are taken."""
        parts, missing, pages = list[Ids](), count, self._pages
        while missing:
            page = (pages & -pages).bit_length() - 1
            found = np.flatnonzero(self._free[page * _PAGE : (page + 1) * _PAGE])
            if len(found) <= missing:
                pages &= ~(1 << page)
            parts.append(found[:missing] + page * _PAGE)
            missing -= len(parts[-1])
        if len(parts) == 1:
            return parts[0], pages
        return np.concatenate([*parts, np.zeros(0, np.int64)]), pages

    def _take(self, ids: Ids) -> None:
        """Take free slots at the versions they have."""
        self._free[ids] = False
        self._num_free -= ids.size

    def _known(self, slot: int) -> int:
        if not 0 <= slot < self.num_blocks:
            raise not_owner(self.unit, np.array([slot]), f"there are 0..{self.num_blocks - 1}")
        return slot

    def _checked(self, ids: Ids) -> Ids:
        if ids.ndim != 1:
            raise not_owner(self.unit, ids, f"shape {ids.shape} is not one row")
        ids = as_ids(ids)
        if ids.size and not (ids.min() >= 0 and ids.max() < self.num_blocks):
            raise not_owner(self.unit, ids, f"not all are in 0..{self.num_blocks - 1}")
        return ids


def make_blocks(num_blocks: int, lanes: int) -> Allocator:
    """An allocator of blocks, as ``ALLOCATORS`` has it."""
    return in_lanes(lanes, lambda: SlotAllocator(num_blocks, unit="blocks"))
