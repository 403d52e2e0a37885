"""Slots: a contiguous row of KV for every request, versions, and a radix tree of tokens.

A slot's version grows whenever it is handed out, and only then: content recorded as (slot,
version) is valid while the version is the same, even after the slot was freed. Given how to ask
for versions, the cache finds only rows that still hold what they held.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsv4kv.bench import systems
from dsv4kv.config.experiments import SystemsConfig
from dsv4kv.core.policies import LRU
from dsv4kv.core.tree import Lease, PrefixTree, path_to
from dsv4kv.errors import NotOwner

NO_SLOT = -1

Copy = Callable[[int, int, int], None]
"""Copies a row's first tokens to another: is called as (from_slot, to_slot, tokens)."""


class SlotAllocator:
    """Free slots as the bits of one whole number, the lowest taken first; and their versions."""

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self._free, self._versions = (1 << max_slots) - 1, [0] * max_slots

    @property
    def free_count(self) -> int:
        return self._free.bit_count()

    def alloc(self) -> int:
        """Take the lowest free slot and bump its version; ``NO_SLOT`` if none is free."""
        slot = (self._free & -self._free).bit_length() - 1
        if slot != NO_SLOT:
            self._free ^= 1 << slot
            self._versions[slot] += 1
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; ``NotOwner`` if it is not held."""
        if self.is_free(slot):
            raise NotOwner(f"slot {slot}: it is free already. Nothing was changed.")
        self._free ^= 1 << slot

    def occupy(self, slot: int) -> None:
        """Take a free slot whose content stays valid; ``NotOwner`` if it is not free."""
        if not self.is_free(slot):
            raise NotOwner(f"slot {slot}: it is held already. Nothing was changed.")
        self._free ^= 1 << slot

    def is_free(self, slot: int) -> bool:
        return bool(self._free >> self._known(slot) & 1)

    def version(self, slot: int) -> int:
        return self._versions[self._known(slot)]

    def _known(self, slot: int) -> int:
        if not 0 <= slot < self.max_slots:
            raise NotOwner(f"slot {slot}: there are 0..{self.max_slots - 1}. Nothing was changed.")
        return slot


class Found(NamedTuple):
    """A prefix of ``length`` tokens, the row it is in, and the slot's version when recorded."""

    length: int = 0
    slot: int = -1
    version: int = -1


class PrefixCacheManager:
    """Remembers which rows hold which tokens; it does not own rows."""

    def __init__(self, max_capacity: int, version: Callable[[int], int]) -> None:
        """Start empty, for ``max_capacity`` tokens; ``version`` of a slot, now."""
        self.tree = PrefixTree(LRU(), chained=False)
        self._capacity, self._version = max_capacity, version
        self.release = self.tree.release

    def pin(self, tokens: Sequence[int] | systems.Tokens) -> Lease:
        """Use the longest known prefix: it is kept until the lease is released."""
        return self.tree.pin(np.asarray(tokens).tolist())

    def extend_row(self, lease: Lease, tokens: systems.Tokens, slot: int, version: int) -> int:
        """Remember it of the tokens that a lease holds and of ``tokens``, which follow them.

        As many are stored as have room once all that may go has gone; how many are known now.
        """
        tree, keys = self.tree, tokens.tolist()
        known = tree.match_length(keys, lease)
        tree.extend(lease, keys[:known], [])
        missing = len(keys) - known - (self._capacity - tree.cached)
        if missing > 0:
            evicted = min(missing, tree.evictable)
            tree.evict(evicted)
            keys = keys[: len(keys) - (missing - evicted)]
        tree.extend(lease, keys[known:], [])
        assert lease.run is not None
        for run in path_to(lease.run):
            others = [row for row in run.rows if row[0] != slot and self._is_valid(*row)]
            run.rows = [(slot, version), *others]
        return lease.length

    def find(self, tokens: systems.Tokens) -> Found:
        """Look up the longest prefix that a row still holds, and the row; counts as a use."""
        lease = self.pin(tokens)
        path = reversed(path_to(lease.run) if lease.run else [])
        valid = (Found(run.end, *row) for run in path for row in run.rows if self._is_valid(*row))
        found = next(valid, Found())
        self.release(lease)
        return found

    def _is_valid(self, slot: int, version: int) -> bool:
        return self._version(slot) == version


@dataclass(frozen=True)
class Seat:
    """A request's slot, and a lease on what the prefix cache knows of its prompt."""

    slot: int
    start: int  # tokens of the prompt that it holds already
    copied: int  # tokens of them that were copied from another slot
    lease: Lease


class SlotScheduler:
    """Seats prompts in slots.

    What was found when a request was queued may be gone when it starts.  Is the version still the
    one that was found, a free slot that ends with the prefix is occupied as it is; else the prefix
    is copied into another.  Has the version changed, the request starts at 0.
    """

    def __init__(self, slots: SlotAllocator, cache: PrefixCacheManager, copy: Copy) -> None:
        """Seat in ``slots``; ``cache`` must have been made with ``slots.version``."""
        self._slots, self._cache, self._copy = slots, cache, copy
        self._written = [0] * slots.max_slots  # tokens in each slot

    def begin(self, tokens: systems.Tokens, found: Found) -> Seat | None:
        """Seat a prompt for which ``found`` was found; None if no slot is free."""
        slots, length, slot, copied = self._slots, found.length, found.slot, 0
        valid = length > 0 and slots.version(slot) == found.version
        if valid and slots.is_free(slot) and self._written[slot] == length:
            slots.occupy(slot)
        else:
            slot = slots.alloc()
            if slot == NO_SLOT:
                return None
            if not valid:
                length = 0
            elif slot != found.slot:  # else it is in its place, under a new version
                source = self._cache.find(tokens[:length])
                self._copy(source.slot, slot, source.length)
                length = copied = source.length
        return Seat(slot, length, copied, self._cache.pin(tokens))

    def record(self, seat: Seat, tokens: systems.Tokens) -> None:
        """The slot holds the KV of ``tokens`` now: others may begin with them."""
        slot, lease = seat.slot, seat.lease
        self._cache.extend_row(lease, tokens[lease.length :], slot, self._slots.version(slot))

    def end(self, seat: Seat, tokens: systems.Tokens) -> None:
        """Leave a slot that holds the KV of ``tokens``; it stays until the slot is taken anew."""
        self.record(seat, tokens)
        self._cache.release(seat.lease)
        self._written[seat.slot] = len(tokens)
        self._slots.free(seat.slot)


class KvRows:
    """One row of KV for each slot."""

    def __init__(self, slots: int, tokens: int) -> None:
        self.kv = np.zeros((slots, tokens, systems.KV_WORDS), dtype=np.uint64)

    def copy(self, source: int, target: int, tokens: int) -> None:
        self.kv[target, :tokens] = self.kv[source, :tokens]


_COUNTED: dict[str, systems.Unit] = {
    "prompt tokens": "tokens",
    "prompt tokens reused": "tokens",
    "prompt tokens copied from another slot": "tokens",
    "requests in a slot as it was": "requests",
    "requests whose slot had changed": "requests",  # between being queued and starting
}


def run_slots(config: SystemsConfig, model: systems.Model) -> systems.Outcome:
    """Serve the conversations over rows, a decode step of all that are seated at a time."""
    outcome, counts = systems.Outcome("slots"), Counter[str]()
    rows = KvRows(config.slots.slots, config.chat.longest_tokens)
    slots = SlotAllocator(config.slots.slots)
    cache = PrefixCacheManager(config.slots.cached_tokens, slots.version)
    scheduler = SlotScheduler(slots, cache, rows.copy)
    chat = systems.Chat(config.chat, config.seed)
    waiting, running = deque[tuple[systems.Turn, Found]](), list[tuple[systems.Turn, Seat]]()
    texts = dict[int, systems.Tokens]()  # prompt and answer so far, by slot

    def queue(turns: list[systems.Turn]) -> None:  # one token is computed in any case
        waiting.extend((turn, cache.find(turn.prompt[:-1])) for turn in turns)

    def compute(slot: int, tokens: systems.Tokens, start: int) -> None:
        row: systems.Kv = rows.kv[slot]
        row[start : len(tokens)] = model.compute(tokens[start:], row[start - 1] if start else None)
        texts[slot] = tokens

    queue(chat.join(config.chat.begin))
    while waiting or running:
        while waiting and (seat := scheduler.begin(waiting[0][0].prompt, waiting[0][1])):
            turn, found = waiting.popleft()
            changed, kept = found.length > 0 and not seat.start, seat.start > 0 and not seat.copied
            row = (len(turn.prompt), seat.start, seat.copied, kept, changed)
            counts.update(dict(zip(_COUNTED, map(int, row), strict=True)))
            compute(seat.slot, turn.prompt, seat.start)
            scheduler.record(seat, turn.prompt)
            running.append((turn, seat))
        for turn, seat in list(running):
            tokens = texts[seat.slot]
            kv: systems.Kv = rows.kv[seat.slot, : len(tokens)]
            if len(tokens) < len(turn.prompt) + turn.answer_tokens:
                answered = np.concatenate([tokens, model.next_token(kv[-1])])
                compute(seat.slot, answered, len(tokens))
                continue
            outcome.check_answer(model, turn, tokens, kv)
            scheduler.end(seat, tokens)
            running.remove((turn, seat))
            queue(chat.after(turn, tokens))
    pinned, held = cache.tree.pinned, slots.max_slots - slots.free_count
    sentence = f"{pinned} tokens are still pinned and {held} slots taken at the end."
    outcome.check("end", not pinned and not held, sentence)
    outcome.counted("rows of KV", "B", rows.kv.nbytes)
    for quantity, unit in _COUNTED.items():
        outcome.counted(quantity, unit, counts[quantity])
    return outcome
