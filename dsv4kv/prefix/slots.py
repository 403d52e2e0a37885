"""Which slot a prompt begins in, and how much of it is there: one contiguous KV row a request."""

from dataclasses import dataclass

from dsv4kv.cache.slots import NO_SLOT, SlotAllocator
from dsv4kv.prefix.index import Lease, Tokens
from dsv4kv.prefix.radix import Found, PrefixCacheManager, encode_tokens


@dataclass(frozen=True)
class Seat:
    """A request's slot.

    Attributes:
        slot: The slot.
        start: Tokens of the prompt that it holds already.
        copied: Those of them that were copied from another slot.
        lease: Keeps what the prefix cache knows of the prompt.
    """

    slot: int
    start: int
    copied: int
    lease: Lease


class SlotScheduler:
    """Seats prompts in slots.

    What was found when a request was queued may be gone when it starts. Is the version still the
    one that was found, a free slot that ends with the prefix is occupied as it is; else the prefix
    is copied into another. Has the version changed, the request starts at 0.
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
        encode_tokens(tokens)  # refuses them before a slot is taken
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
