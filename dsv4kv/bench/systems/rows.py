"""Chains of tokens over rows: one contiguous KV row (slot) for every prompt.

Which slot a prompt begins in, and how much of it is there.  A slot's version grows whenever it is
handed out, and only then: content recorded as (slot, version) is valid while the version is the
same, even after the slot was freed. Given how to ask for versions, the cache finds only rows that
still hold what they held; otherwise compare what is found with ``SlotAllocator.version``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsv4kv.core.policies import LRU, Policy, Run
from dsv4kv.core.tree import Lease, PrefixTree, path_to
from dsv4kv.errors import ConfigError, NotOwner

CopyKv = Callable[[int, int, int], None]
Tokens = NDArray[np.integer] | Sequence[int]


NO_SLOT = -1


class SlotAllocator:
    """Free slots as the bits of one whole number, the lowest taken first; and their versions."""

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


class Found(NamedTuple):
    """A prefix and the row it is in.

    Attributes:
        length: Tokens of it; 0 if nothing is cached.
        slot: The row; −1 if nothing is.
        version: The slot's version when its content was recorded.
    """

    length: int
    slot: int
    version: int


NOTHING = Found(0, -1, -1)


class PrefixCacheManager:
    """Remembers which rows hold which tokens; it does not own rows."""

    def __init__(
        self,
        max_capacity: int,
        policy: Policy | None = None,
        copy_kv: CopyKv | None = None,
        version: Callable[[int], int] | None = None,
    ) -> None:
        """Start empty.

        Args:
            max_capacity: Tokens it may remember.
            policy: What is forgotten first; None is LRU.
            copy_kv: Called as (from_slot, to_slot, tokens) by ``copy_kv``.
            version: The version a slot has now, as ``SlotAllocator.version`` gives it; None:
                slots are never handed out again.
        """
        self.tree = PrefixTree(policy or LRU(max_capacity), chained=False)
        self.max_capacity = max_capacity
        self._copy, self._version = copy_kv, version

    def pin(self, tokens: Tokens) -> Lease:
        """Use the longest known prefix: it is kept until the lease is released."""
        return self.tree.pin(_list(tokens))

    def release(self, lease: Lease) -> None:
        """End a lease; ``NotOwner`` if it has ended before."""
        self.tree.release(lease)

    def insert_row(self, tokens: Tokens, slot: int, version: int) -> int:
        """Remember that a slot of a version holds all ``tokens``; how many of them are known."""
        lease = self.pin(tokens)
        stored = self.extend_row(lease, tokens[lease.length :], slot, version)
        self.release(lease)
        return stored

    def extend_row(self, lease: Lease, tokens: Tokens, slot: int, version: int) -> int:
        """Remember it of the tokens that a lease holds and of ``tokens``, which follow them.

        As many are stored as have room once all that may go has gone; how many are known now.
        """
        tree, keys = self.tree, _list(tokens)
        known = tree.match_length(keys, lease)
        tree.extend(lease, keys[:known], [])
        missing = len(keys) - known - (self.max_capacity - tree.cached)
        if missing > 0:
            evicted = min(missing, tree.evictable)
            tree.evict(evicted)
            keys = keys[: len(keys) - (missing - evicted)]
        tree.extend(lease, keys[known:], [])
        assert lease.run is not None
        for run in path_to(lease.run):
            others = [row for row in run.rows if row[0] != slot and self._is_valid(*row)]
            run.rows = [(slot, version), *(others if self._version else ())]
        return lease.length

    def find(self, tokens: Tokens) -> Found:
        """Look up the longest prefix that a row still holds, and the row; counts as a use."""
        lease = self.pin(tokens)
        found = self._newest_row(lease.run)
        self.release(lease)
        return found

    def copy_kv(self, tokens: Tokens, to_slot: int) -> Found:
        """Copy the longest prefix that a row still holds into a slot; kept while it is copied."""
        assert self._copy is not None
        lease = self.pin(tokens)
        found = self._newest_row(lease.run)
        if found.length:
            self._copy(found.slot, to_slot, found.length)
        self.release(lease)
        return found

    def _newest_row(self, run: Run | None) -> Found:
        """The longest chain up to a run that is still in a row."""
        for each in reversed(path_to(run) if run else []):
            for slot, version in each.rows:
                if self._is_valid(slot, version):
                    return Found(each.end, slot, version)
        return NOTHING

    def _is_valid(self, slot: int, version: int) -> bool:
        return self._version is None or self._version(slot) == version


def _list(tokens: Tokens) -> list[int]:
    found: list[int] = np.asarray(tokens).tolist()
    return found


@dataclass(frozen=True)
class Seat:
    """A request's slot.

    Attributes:
        slot: The slot.
        start: Tokens of the prompt that it holds already.
        copied: Tokens of them that were copied from another slot.
        lease: Keeps what the prefix cache knows of the prompt.
    """

    slot: int
    start: int
    copied: int
    lease: Lease


class SlotScheduler:
    """Seats prompts in slots.

    What was found when a request was queued may be gone when it starts.  Is the version still the
    one that was found, a free slot that ends with the prefix is occupied as it is; else the prefix
    is copied into another.  Has the version changed, the request starts at 0.
    """

    def __init__(self, slots: SlotAllocator, cache: PrefixCacheManager) -> None:
        """Seat in ``slots``; ``cache`` must have been made with ``slots.version``."""
        self._slots, self._cache = slots, cache
        self._written = [0] * slots.max_slots  # tokens in each slot

    def find(self, tokens: Tokens) -> Found:
        """The longest prefix that a slot holds, when a request is queued."""
        return self._cache.find(tokens)

    def begin(self, tokens: Tokens, found: Found) -> Seat | None:
        """Seat a prompt for which ``found`` was found; None if no slot is free."""
        slots, length = self._slots, found.length
        valid = length > 0 and slots.version(found.slot) == found.version
        if valid and slots.is_free(found.slot) and self._written[found.slot] == length:
            slots.occupy(found.slot)
            return self._seat(tokens, found.slot, length, 0)
        slot = slots.alloc()
        if slot == NO_SLOT:
            return None
        if not valid or slot == found.slot:  # then the prefix is in its place, under a new version
            return self._seat(tokens, slot, length if valid else 0, 0)
        copied = self._cache.copy_kv(tokens[:length], slot).length
        return self._seat(tokens, slot, copied, copied)

    def record(self, seat: Seat, tokens: Tokens) -> None:
        """The slot holds the KV of ``tokens`` now: others may begin with them."""
        slot, lease = seat.slot, seat.lease
        self._cache.extend_row(lease, tokens[lease.length :], slot, self._slots.version(slot))

    def end(self, seat: Seat, tokens: Tokens) -> None:
        """Leave a slot that holds the KV of ``tokens``; it stays until the slot is taken anew."""
        self.record(seat, tokens)
        self._cache.release(seat.lease)
        self._written[seat.slot] = len(tokens)
        self._slots.free(seat.slot)

    def _seat(self, tokens: Tokens, slot: int, start: int, copied: int) -> Seat:
        return Seat(slot, start, copied, self._cache.pin(tokens))
