"""Slots for requests that each keep one contiguous row of KV: a bitmask of free ones, versions.

A slot's version grows whenever it is handed out, and only then: content recorded as (slot,
version) is valid while the version is the same, even after the slot was freed. ``occupy`` takes
such a slot again without ending that.
"""

from dsv4kv.errors import ConfigError, NotOwner

NO_SLOT = -1


class SlotAllocator:
    """Free slots as the bits of one whole number; the lowest is taken first."""

    def __init__(self, max_slots: int) -> None:
        """Start with all slots free, at version 0."""
        if max_slots <= 0:
            raise ConfigError(f"{max_slots} slots cannot be: give at least 1.")
        self.max_slots = max_slots
        self._free = (1 << max_slots) - 1
        self._versions = [0] * max_slots

    @property
    def free_count(self) -> int:
        """Free slots."""
        return self._free.bit_count()

    def alloc(self) -> int:
        """Take the lowest free slot and bump its version; ``NO_SLOT`` if none is free."""
        lowest = self._free & -self._free
        if not lowest:
            return NO_SLOT
        self._free ^= lowest
        slot = lowest.bit_length() - 1
        self._versions[slot] += 1
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; ``NotOwner`` if it is not held."""
        if self.is_free(slot):
            raise NotOwner(f"slot {slot}: it is free already. Nothing was changed.")
        self._free |= 1 << slot

    def occupy(self, slot: int) -> None:
        """Take a free slot whose content stays valid; ``NotOwner`` if it is not free."""
        if not self.is_free(slot):
            raise NotOwner(f"slot {slot}: it is held already. Nothing was changed.")
        self._free &= ~(1 << slot)

    def is_free(self, slot: int) -> bool:
        """Whether a slot is free; ``NotOwner`` beyond the slots."""
        return bool(self._free >> self._known(slot) & 1)

    def version(self, slot: int) -> int:
        """How often a slot has been handed out; ``NotOwner`` beyond the slots."""
        return self._versions[self._known(slot)]

    def _known(self, slot: int) -> int:
        if not 0 <= slot < self.max_slots:
            raise NotOwner(f"slot {slot}: there are 0..{self.max_slots - 1}. Nothing was changed.")
        return slot
