"""One contiguous KV row (slot) a prompt: what is found, occupied, copied, or begun at 0."""

from random import Random

import numpy as np
import pytest

from dsv4kv.bench import slot_system as sl

SLOTS = 4
Text = tuple[int, ...]


class Scene(sl.SlotCache):
    """Slots whose content is known, and a plain list of what was recorded of each version."""

    def __init__(self, capacity: int = 10**6) -> None:
        super().__init__(SLOTS, 16, capacity)
        self.content: list[Text] = [()] * SLOTS
        self.recorded: list[tuple[int, int, Text]] = []

    def copy(self, source: int, target: int, tokens: int) -> None:
        self.content[target] = self.content[source][:tokens] + self.content[target][tokens:]

    def look_up(self, text: Text) -> sl.Found:
        return self.find(np.array(text, np.int32))

    def seat(self, text: Text, found: sl.Found) -> sl.Seat | None:
        """Seat a prompt and compute what is missing."""
        seat = self.begin(np.array(text, np.int32), found)
        if seat is not None:
            assert self.content[seat.slot][: seat.start] == text[: seat.start]
            self.write(seat, text)
            self.record(seat, np.array(text, np.int32))
        return seat

    def leave(self, seat: sl.Seat, text: Text) -> None:
        self.write(seat, text)
        self.end(seat, np.array(text, np.int32))

    def write(self, seat: sl.Seat, text: Text) -> None:
        rest = self.content[seat.slot][len(text) :]  # what an earlier one wrote behind stays
        self.content[seat.slot] = text + rest
        self.recorded.append((seat.slot, self.slots.version(seat.slot), text))

    def serve(self, text: Text) -> sl.Seat:
        seat = self.seat(text, self.look_up(text[:-1]))
        assert seat is not None
        self.leave(seat, text)
        return seat

    def plain_length(self, text: Text) -> int:
        """Longest prefix that a slot of the recorded version holds."""
        valid = [t for slot, version, t in self.recorded if self._is_valid(slot, version)]
        return max((common(text, t) for t in valid), default=0)

    def check_recorded(self) -> None:
        for slot, version, text in self.recorded:
            if self._is_valid(slot, version):
                assert self.content[slot][: len(text)] == text


def common(a: Text, b: Text) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_the_capacity_is_never_exceeded_and_the_oldest_goes() -> None:
    scene = Scene(10)
    for text in ((1,) * 5, (2,) * 5, (3,) * 3):
        scene.serve(text)
        scene.look_up((1,))
    assert scene.tree.cached == 10
    # Of the first prompt only its first token was used, and of old chains the end goes first.
    assert [scene.tree.match_length([t] * 5) for t in (1, 2, 3)] == [2, 5, 3]


@pytest.mark.parametrize("capacity", [10**6, 12])
@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_a_request_starts_where_a_plain_search_says(seed: int, capacity: int) -> None:
    draw, scene = Random(seed), Scene(capacity)
    queued: list[tuple[Text, sl.Found]] = []
    running: list[tuple[sl.Seat, Text]] = []
    for _ in range(60):
        match draw.randrange(3):
            case 0:
                text = tuple(draw.randrange(2) for _ in range(draw.randint(2, 9)))
                found = scene.look_up(text[:-1])
                if capacity > 100:
                    assert found.length == scene.plain_length(text[:-1])
                queued.append((text, found))
            case 1 if queued:
                text, found = queued.pop(draw.randrange(len(queued)))
                valid = found.length and scene.slots.version(found.slot) == found.version
                seat = scene.seat(text, found)
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
                scene.leave(
                    seat, text + tuple(draw.randrange(2) for _ in range(draw.randrange(4)))
                )
        scene.check_recorded()
