"""Slots: the lowest free one first, and versions that tell whether content is still valid."""

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsv4kv.cache.allocators.bitmask import NO_SLOT, SlotAllocator
from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.errors import CacheError, NotOwner, OutOfBlocks
from tests.cache.caches import allocator_snapshot
from tests.examples import examples


def test_the_lowest_free_slot_is_taken_first() -> None:
    slots = SlotAllocator(4)
    assert [slots.alloc() for _ in range(3)] == [0, 1, 2]
    slots.free(1)
    slots.free(0)
    assert [slots.alloc() for _ in range(3)] == [0, 1, 3]


def test_without_a_free_slot_none_is_given() -> None:
    slots = SlotAllocator(1)
    assert slots.alloc() == 0
    assert slots.alloc() == NO_SLOT == -1
    assert slots.free_count == 0


def test_handing_out_bumps_the_version_and_freeing_does_not() -> None:
    slots = SlotAllocator(2)
    assert slots.version(0) == 0
    slots.alloc()
    assert slots.version(0) == 1
    slots.free(0)
    assert slots.version(0) == 1
    slots.alloc()
    assert slots.version(0) == 2


def test_occupying_takes_a_free_slot_and_keeps_its_content_valid() -> None:
    slots = SlotAllocator(3)
    slots.alloc()
    slots.free(0)
    version = slots.version(0)
    slots.occupy(0)
    assert (slots.version(0), slots.is_free(0), slots.free_count) == (version, False, 2)
    assert slots.alloc() == 1


def test_occupying_a_held_slot_is_refused() -> None:
    slots = SlotAllocator(2)
    slots.alloc()
    with pytest.raises(NotOwner, match=r"^slots 0: it is held already"):
        slots.occupy(0)
    assert slots.free_count == 1


@pytest.mark.parametrize("slot", [-1, 2, 2**40])
def test_slots_that_do_not_exist_are_refused(slot: int) -> None:
    slots = SlotAllocator(2)
    slots.alloc()
    for ask in (slots.free, slots.occupy, slots.is_free, slots.version):
        with pytest.raises(NotOwner):
            ask(slot)
    assert slots.free_count == 1


def test_many_slots_are_the_lowest_in_order_across_pages() -> None:
    slots = SlotAllocator(10_000)
    every = slots.acquire(10_000)
    assert every.tolist() == list(range(10_000))
    slots.release(np.array([9_999, 4_095, 4_096, 17]))
    assert slots.acquire(3).tolist() == [17, 4_095, 4_096]
    assert slots.acquire(1).tolist() == [9_999]


class SlotMachine(RuleBasedStateMachine):
    """Beside a set of free slots and a list of versions."""

    @initialize(size=st.sampled_from([3, 4_096, 4_100, 9_000]))
    def build(self, size: int) -> None:
        self.slots, self.size = SlotAllocator(size), size
        self.free = set(range(size))
        self.versions = [0] * size

    def draw_some(self, among: set[int], data: st.DataObject) -> Ids:
        """Few of them or most of them, in any order: pages run empty and get slots again."""
        draw = random.Random(data.draw(st.integers(0, 2**20)))
        count = data.draw(st.sampled_from([1, 2, -(-len(among) // 2), len(among)]))
        pool = sorted(among)
        if data.draw(st.booleans()):  # neighbours, else from everywhere
            first = draw.randrange(len(pool))
            pool = pool[first : first + count]
        return np.array(draw.sample(pool, min(count, len(pool))), dtype=np.int64)

    def refuses(self, *calls: Callable[[], object], error: type[CacheError] = NotOwner) -> None:
        before = allocator_snapshot(self.slots)
        for call in calls:
            with pytest.raises(error):
                call()
        assert allocator_snapshot(self.slots) == before

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        limits = st.sampled_from([0, 1, 5, len(self.free) // 2, len(self.free)])
        self.take(min(data.draw(limits), len(self.free)))

    def take(self, count: int) -> None:
        taken = sorted(self.free)[:count]
        assert self.slots.acquire(count).tolist() == taken
        self.free -= set(taken)
        for slot in taken:
            self.versions[slot] += 1

    @rule(data=st.data(), share=st.floats(0, 1))
    def take_all_and_some_again(self, data: st.DataObject, share: float) -> None:
        """Pages run empty, get slots again, and are the lowest again."""
        self.take(len(self.free))
        self.release(data=data, as_owner=True)
        self.take(int(len(self.free) * share))

    @rule(beyond=st.integers(1, 3))
    def acquire_too_many(self, beyond: int) -> None:
        for count in (len(self.free) + beyond, -beyond):
            self.refuses(partial(self.slots.acquire, count), error=OutOfBlocks)

    @rule()
    def alloc(self) -> None:
        lowest = min(self.free, default=NO_SLOT)
        assert self.slots.alloc() == lowest
        if lowest != NO_SLOT:
            self.free.remove(lowest)
            self.versions[lowest] += 1

    @precondition(lambda self: len(self.free) < self.size)
    @rule(data=st.data(), as_owner=st.booleans())
    def release(self, data: st.DataObject, as_owner: bool) -> None:
        ids = self.draw_some(set(range(self.size)) - self.free, data)
        self.slots.release(ids, self.slots.generation(ids) if as_owner else None)
        self.free |= set(ids.tolist())

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def occupy_some(self, data: st.DataObject) -> None:
        ids = self.draw_some(self.free, data)[:5].tolist()
        for slot in ids:
            self.slots.occupy(slot)
            self.refuses(partial(self.slots.occupy, slot))
        self.free -= set(ids)

    @precondition(lambda self: len(self.free) < self.size)
    @rule(data=st.data())
    def release_wrongly(self, data: st.DataObject) -> None:
        ids = self.draw_some(set(range(self.size)) - self.free, data)
        stale = self.slots.generation(ids)
        stale[data.draw(st.integers(0, len(ids) - 1))] -= 1
        strangers = [self.size, -1, *sorted(self.free)[:1]]
        wrong = [np.append(ids, other) for other in [*strangers, ids[0]]]
        release = self.slots.release
        self.refuses(partial(release, ids, stale), *(partial(release, each) for each in wrong))

    @invariant()
    def counts_and_versions_are_known(self) -> None:
        assert self.slots.free_count == len(self.free)
        assert self.slots.num_held == self.size - len(self.free)
        every = np.arange(self.size)
        assert self.slots.generation(every).tolist() == self.versions
        assert set(np.flatnonzero(self.slots._free).tolist()) == self.free


TestSlots = SlotMachine.TestCase
TestSlots.settings = examples(125, stateful_step_count=25)
