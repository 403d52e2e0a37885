"""One contiguous KV row (slot) a prompt: what is found, occupied, copied, or begun at 0."""

from random import Random

import numpy as np
import pytest

from dsv4kv.bench import slot_system as sl


def row(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, dtype=np.int32)


# ---- seats -------------------------------------------------------------------------------------

SLOTS = 4
Text = tuple[int, ...]


class Scene:
    """Slots whose content is known, and a plain list of what was recorded of each version."""

    def __init__(self, capacity: int = 10**6) -> None:
        self.slots = sl.SlotAllocator(SLOTS)
        self.content: list[Text] = [()] * SLOTS
        self.cache = sl.PrefixCacheManager(capacity, self.slots.version)
        self.scheduler = sl.SlotScheduler(self.slots, self.cache, self.copy)
        self.recorded: list[tuple[int, int, Text]] = []

    def copy(self, source: int, target: int, tokens: int) -> None:
        self.content[target] = self.content[source][:tokens] + self.content[target][tokens:]

    def find(self, text: Text) -> sl.Found:
        return self.cache.find(row(*text))

    def begin(self, text: Text, found: sl.Found) -> sl.Seat | None:
        """Seat a prompt and compute what is missing."""
        seat = self.scheduler.begin(row(*text), found)
        if seat is not None:
            assert self.content[seat.slot][: seat.start] == text[: seat.start]
            rest = self.content[seat.slot][len(text) :]
            self.content[seat.slot] = text + rest  # what an earlier one wrote behind stays
            self.scheduler.record(seat, row(*text))
            self.note(seat, text)
        return seat

    def end(self, seat: sl.Seat, text: Text) -> None:
        self.content[seat.slot] = text + self.content[seat.slot][len(text) :]
        self.scheduler.end(seat, row(*text))
        self.note(seat, text)

    def note(self, seat: sl.Seat, text: Text) -> None:
        self.recorded.append((seat.slot, self.slots.version(seat.slot), text))

    def serve(self, text: Text) -> sl.Seat:
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


def common(a: Text, b: Text) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


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
        assert scene.cache.tree.cached <= capacity
        scene.check_recorded()
