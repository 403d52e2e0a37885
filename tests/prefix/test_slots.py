"""A prompt begins in a slot that holds what it is said to hold: occupied, copied, or from 0."""

from random import Random

import numpy as np
import pytest

from dsv4kv.cache.slots import SlotAllocator
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.radix import NOTHING, Found, PrefixCacheManager
from dsv4kv.prefix.slots import Seat, SlotScheduler

SLOTS = 4
Text = tuple[int, ...]


class Scene:
    """Slots whose content is known, and a plain list of what was recorded of each version."""

    def __init__(self, capacity: int = 10**6) -> None:
        self.slots = SlotAllocator(SLOTS)
        self.content: list[Text] = [()] * SLOTS
        cache = PrefixCacheManager(capacity, None, self.copy, self.slots.version)
        self.scheduler = SlotScheduler(self.slots, cache)
        self.recorded: list[tuple[int, int, Text]] = []

    def copy(self, source: int, target: int, tokens: int) -> None:
        self.content[target] = self.content[source][:tokens] + self.content[target][tokens:]

    def find(self, text: Text) -> Found:
        return self.scheduler.find(row(text))

    def begin(self, text: Text, found: Found) -> Seat | None:
        """Seat a prompt and compute what is missing."""
        seat = self.scheduler.begin(row(text), found)
        if seat is not None:
            assert self.content[seat.slot][: seat.start] == text[: seat.start]
            rest = self.content[seat.slot][len(text) :]
            self.content[seat.slot] = text + rest  # what an earlier one wrote behind stays
            self.scheduler.record(seat, row(text))
            self.note(seat, text)
        return seat

    def end(self, seat: Seat, text: Text) -> None:
        self.content[seat.slot] = text + self.content[seat.slot][len(text) :]
        self.scheduler.end(seat, row(text))
        self.note(seat, text)

    def note(self, seat: Seat, text: Text) -> None:
        self.recorded.append((seat.slot, self.slots.version(seat.slot), text))

    def serve(self, text: Text) -> Seat:
        seat = self.begin(text, self.find(text[:-1]))
        assert seat is not None
        self.end(seat, text)
        return seat

    def plain_length(self, text: Text) -> int:
        """Longest prefix that a slot of the recorded version holds."""
        valid = [t for slot, version, t in self.recorded if self.slots.version(slot) == version]
        return max((common(text, t) for t in valid), default=0)

    def check_recorded(self) -> None:
        for slot, version, text in self.recorded:
            if self.slots.version(slot) == version:
                assert self.content[slot][: len(text)] == text


def row(text: Text) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(text, dtype=np.int32)


def common(a: Text, b: Text) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_a_free_slot_that_ends_with_the_prefix_is_occupied_without_a_copy() -> None:
    scene = Scene()
    first = scene.serve((1, 2, 3))
    version = scene.slots.version(first.slot)
    again = scene.serve((1, 2, 3, 4))
    assert (again.slot, again.start, again.copied) == (first.slot, 3, 0)
    assert scene.slots.version(first.slot) == version


def test_a_slot_that_goes_on_otherwise_or_is_in_use_is_copied_from() -> None:
    scene = Scene()
    first = scene.begin((1, 2, 3), NOTHING)
    assert first is not None
    second = scene.begin((1, 2, 9), scene.find((1, 2)))
    assert second is not None
    assert (second.slot != first.slot, second.start, second.copied) == (True, 2, 2)
    scene.end(first, (1, 2, 3))
    third = scene.begin((1, 2, 7), scene.find((1, 2)))
    assert third is not None
    assert (third.start, third.copied > 0) == (2, third.slot != first.slot)
    scene.check_recorded()


def test_a_slot_that_changed_since_the_request_was_queued_makes_it_start_at_0() -> None:
    scene = Scene()
    scene.serve((1, 2, 3))
    found = scene.find((1, 2, 3))
    for number in range(SLOTS):
        assert scene.begin((9, number), NOTHING) is not None
    scene.slots.free(0)
    late = scene.begin((1, 2, 3, 4), found)
    assert late is not None
    assert (late.slot, late.start, late.copied) == (0, 0, 0)


def test_without_a_free_slot_nobody_is_seated() -> None:
    scene = Scene()
    for number in range(SLOTS):
        scene.begin((number, 1), NOTHING)
    assert scene.begin((7,), NOTHING) is None


def test_what_are_no_tokens_takes_no_slot() -> None:
    scene = Scene()
    with pytest.raises(ConfigError, match=r"tokens must be 0\.\."):
        scene.scheduler.begin(np.array([1, -2]), NOTHING)
    assert scene.slots.free_count == SLOTS


@pytest.mark.parametrize("capacity", [10**6, 12])
@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_a_request_starts_where_a_plain_search_says(seed: int, capacity: int) -> None:
    draw, scene = Random(seed), Scene(capacity)
    queued: list[tuple[Text, Found]] = []
    running: list[tuple[Seat, Text]] = []
    for _ in range(60):
        match draw.randrange(3):
            case 0:
                text = tuple(draw.randrange(2) for _ in range(draw.randint(2, 9)))
                found = scene.find(text[:-1])
                if capacity > 100:
                    assert found.length == scene.plain_length(text[:-1])
                queued.append((text, found))
            case 1 if queued:
                text, found = queued.pop(draw.randrange(len(queued)))
                valid = found.length and scene.slots.version(found.slot) == found.version
                seat = scene.begin(text, found)
                if seat is None:
                    assert not scene.slots.free_count
                elif not valid:
                    assert seat.start == 0
                elif capacity > 100:
                    assert seat.start == found.length
                if seat is not None:
                    running.append((seat, text))
            case 2 if running:
                seat, text = running.pop(draw.randrange(len(running)))
                scene.end(seat, text + tuple(draw.randrange(2) for _ in range(draw.randrange(4))))
        scene.check_recorded()
