"""Slots: a contiguous row of KV for every request, versions, and a radix tree of tokens.

A slot's version grows whenever it is handed out, and only then: content recorded as (slot,
version) is valid while the version is the same, even after the slot was freed, and only rows
that still hold what they held are found.
"""

from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsv4kv.bench import systems
from dsv4kv.config.experiments import SystemsConfig
from dsv4kv.core.policies import LRU
from dsv4kv.core.tree import Lease, PrefixTree, path_to

NO_SLOT = -1


class SlotAllocator:
    """Free slots as the bits of one whole number, the lowest taken first; and their versions."""

    def __init__(self, max_slots: int) -> None:
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
        """Give a slot back that is held."""
        self._free ^= 1 << slot

    def occupy(self, slot: int) -> None:
        """Take a free slot whose content stays valid."""
        self._free ^= 1 << slot

    def is_free(self, slot: int) -> bool:
        return bool(self._free >> slot & 1)

    def version(self, slot: int) -> int:
        return self._versions[slot]


class Found(NamedTuple):
    """A prefix of ``length`` tokens, the row it is in, and the slot's version when recorded."""

    length: int = 0
    slot: int = -1
    version: int = -1


@dataclass(frozen=True)
class Seat:
    """A request's slot, and a lease on what the tree knows of its prompt."""

    slot: int
    start: int  # tokens of the prompt that it holds already
    copied: int  # tokens of them that were copied from another slot
    lease: Lease


class SlotCache:
    """Rows of KV uint64[slots, tokens, words], a tree of the tokens in them, seats of prompts.

    What was found when a request was queued may be gone when it starts. Is the version still the
    one that was found, a free slot that ends with the prefix is occupied as it is; else the prefix
    is copied into another. Has the version changed, the request starts at 0.
    """

    def __init__(self, slots: int, row_tokens: int, capacity: int) -> None:
        """Start empty; the tree remembers at most ``capacity`` tokens."""
        self.slots, self._capacity = SlotAllocator(slots), capacity
        self.tree = PrefixTree(LRU(), chained=False)
        self.kv = np.zeros((slots, row_tokens, systems.KV_WORDS), dtype=np.uint64)
        self._written = [0] * slots  # tokens in each slot

    def find(self, tokens: systems.Tokens) -> Found:
        """Look up the longest prefix that a row still holds, and the row; counts as a use."""
        lease = self.tree.pin(tokens.tolist())
        path = reversed(path_to(lease.run) if lease.run else [])
        valid = (Found(run.end, *row) for run in path for row in run.rows if self._is_valid(*row))
        found = next(valid, Found())
        self.tree.release(lease)
        return found

    def begin(self, tokens: systems.Tokens, found: Found) -> Seat | None:
        """Seat a prompt for which ``found`` was found; None if no slot is free."""
        slots, length, slot, copied = self.slots, found.length, found.slot, 0
        valid = length > 0 and self._is_valid(slot, found.version)
        if valid and slots.is_free(slot) and self._written[slot] == length:
            slots.occupy(slot)
        else:
            slot = slots.alloc()
            if slot == NO_SLOT:
                return None
            if not valid:
                length = 0
            elif slot != found.slot:  # else it is in its place, under a new version
                source = self.find(tokens[:length])
                self.copy(source.slot, slot, source.length)
                length = copied = source.length
        return Seat(slot, length, copied, self.tree.pin(tokens.tolist()))

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy a row's first tokens to another."""
        self.kv[target, :tokens] = self.kv[source, :tokens]

    def record(self, seat: Seat, tokens: systems.Tokens) -> None:
        """The slot holds the KV of ``tokens`` now: others may begin with them.

        As many are remembered as have room once all that may go has gone.
        """
        tree, lease, keys = self.tree, seat.lease, tokens[seat.lease.length :].tolist()
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
            others = [row for row in run.rows if row[0] != seat.slot and self._is_valid(*row)]
            run.rows = [(seat.slot, self.slots.version(seat.slot)), *others]

    def end(self, seat: Seat, tokens: systems.Tokens) -> None:
        """Leave a slot that holds the KV of ``tokens``; it stays until the slot is taken anew."""
        self.record(seat, tokens)
        self.tree.release(seat.lease)
        self._written[seat.slot] = len(tokens)
        self.slots.free(seat.slot)

    def _is_valid(self, slot: int, version: int) -> bool:
        return self.slots.version(slot) == version


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
    section, tokens_each = config.slots, config.chat.longest_tokens
    cache = SlotCache(section.slots, tokens_each, section.cached_tokens)
    chat = systems.Chat(config.chat, config.seed)
    waiting, running = deque[tuple[systems.Turn, Found]](), list[tuple[systems.Turn, Seat]]()
    texts = dict[int, systems.Tokens]()  # prompt and answer so far, by slot

    def queue(turns: list[systems.Turn]) -> None:  # one token is computed in any case
        waiting.extend((turn, cache.find(turn.prompt[:-1])) for turn in turns)

    def compute(slot: int, tokens: systems.Tokens, start: int) -> None:
        row: systems.Kv = cache.kv[slot]
        row[start : len(tokens)] = model.compute(tokens[start:], row[start - 1] if start else None)
        texts[slot] = tokens

    queue(chat.join(config.chat.begin))
    while waiting or running:
        while waiting and (seat := cache.begin(waiting[0][0].prompt, waiting[0][1])):
            turn, found = waiting.popleft()
            changed, kept = found.length > 0 and not seat.start, seat.start > 0 and not seat.copied
            row = (len(turn.prompt), seat.start, seat.copied, kept, changed)
            counts.update(dict(zip(_COUNTED, map(int, row), strict=True)))
            compute(seat.slot, turn.prompt, seat.start)
            cache.record(seat, turn.prompt)
            running.append((turn, seat))
        for turn, seat in list(running):
            tokens = texts[seat.slot]
            kv: systems.Kv = cache.kv[seat.slot, : len(tokens)]
            if len(tokens) < len(turn.prompt) + turn.answer_tokens:
                answered = np.concatenate([tokens, model.next_token(kv[-1])])
                compute(seat.slot, answered, len(tokens))
                continue
            outcome.check_answer(model, turn, tokens, kv)
            cache.end(seat, tokens)
            running.remove((turn, seat))
            queue(chat.after(turn, tokens))
    pinned, held = cache.tree.pinned, section.slots - cache.slots.free_count
    sentence = f"{pinned} tokens are still pinned and {held} slots taken at the end."
    outcome.check("end", not pinned and not held, sentence)
    outcome.counted("rows of KV", "B", cache.kv.nbytes)
    for quantity, unit in _COUNTED.items():
        outcome.counted(quantity, unit, counts[quantity])
    return outcome
