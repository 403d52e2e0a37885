"""Slots and a prefix tree restated in the plainest way: a node and a dict for every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


class PlainNode:
    """One token of a cached prompt."""

    def __init__(self) -> None:
        self.children: dict[int, PlainNode] = {}
        self.slot = self.version = self.used = self.pins = 0


class PlainRadix:
    """A tree with a node for every token."""

    def __init__(self) -> None:
        self.root = PlainNode()
        self.now = 0

    def insert(self, tokens: Sequence[int], slot: int, version: int) -> None:
        node, self.now = self.root, self.now + 1
        for token in tokens:
            if token not in node.children:
                node.children[token] = PlainNode()
            node = node.children[token]
            node.slot, node.version, node.used = slot, version, self.now

    def find(self, tokens: Sequence[int]) -> tuple[int, int, int]:
        node, length, self.now = self.root, 0, self.now + 1
        for token in tokens:
            after = node.children.get(token)
            if after is None:
                break
            node, length = after, length + 1
            node.used = self.now
        return length, node.slot, node.version

    def pin(self, tokens: Sequence[int], by: int = 1) -> None:
        node = self.root
        for token in tokens:
            node = node.children[token]
            node.pins += by

    def release(self, tokens: Sequence[int]) -> None:
        self.pin(tokens, -1)


class PlainSlots:
    """Free slots as the bits of a whole number; nothing is checked."""

    def __init__(self, max_slots: int) -> None:
        self.mask = (1 << max_slots) - 1
        self.versions = [0] * max_slots

    def alloc(self) -> int:
        if not self.mask:
            return -1
        slot = (self.mask & -self.mask).bit_length() - 1
        self.mask &= ~(1 << slot)
        self.versions[slot] += 1
        return slot

    def free(self, slot: int) -> None:
        self.mask |= 1 << slot

    def occupy(self, slot: int) -> None:
        self.mask &= ~(1 << slot)

    def is_free(self, slot: int) -> bool:
        return bool(self.mask >> slot & 1)

    def version(self, slot: int) -> int:
        return self.versions[slot]


@dataclass(frozen=True)
class PlainSeat:
    """A slot, the tokens it holds already, and those of them that were copied."""

    slot: int
    start: int
    copied: int


class PlainScheduler:
    """The original's rules: a free slot is occupied wherever in its content the prefix ends.

    What is recorded after that end is written over, and found again all the same.
    """

    def __init__(self, max_slots: int, copy_kv: Callable[[int, int, int], None]) -> None:
        self.slots, self.tree, self.copy_kv = PlainSlots(max_slots), PlainRadix(), copy_kv

    def find(self, tokens: Sequence[int]) -> tuple[int, int, int]:
        return self.tree.find(tokens)

    def begin(self, tokens: Sequence[int], found: tuple[int, int, int]) -> PlainSeat | None:
        length, source, version = found
        valid = length > 0 and self.slots.version(source) == version
        if valid and self.slots.is_free(source):
            self.slots.occupy(source)
            return PlainSeat(source, length, 0)
        slot = self.slots.alloc()
        if slot < 0:
            return None
        if not valid:
            return PlainSeat(slot, 0, 0)
        self.copy_kv(source, slot, length)
        return PlainSeat(slot, length, length)

    def record(self, seat: PlainSeat, tokens: Sequence[int]) -> None:
        self.tree.insert(tokens, seat.slot, self.slots.version(seat.slot))

    def end(self, seat: PlainSeat, tokens: Sequence[int]) -> None:
        self.slots.free(seat.slot)
