"""Slots: the lowest free one first, and versions that tell whether content is still valid."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsv4kv.cache.allocators.bitmask import NO_SLOT, SlotAllocator
from dsv4kv.errors import NotOwner


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
    """Beside a set of free slots and a dict of versions."""

    @initialize(size=st.sampled_from([3, 64, 4_096, 4_100]))
    def build(self, size: int) -> None:
        self.slots, self.size = SlotAllocator(size), size
        self.free = set(range(size))
        self.versions = dict.fromkeys(range(size), 0)

    @rule(count=st.integers(0, 5_000))
    def acquire(self, count: int) -> None:
        count = min(count, len(self.free))
        taken = sorted(self.free)[:count]
        assert self.slots.acquire(count).tolist() == taken
        self.free -= set(taken)
        for slot in taken:
            self.versions[slot] += 1

    @rule()
    def alloc(self) -> None:
        lowest = min(self.free, default=NO_SLOT)
        assert self.slots.alloc() == lowest
        if lowest != NO_SLOT:
            self.free.remove(lowest)
            self.versions[lowest] += 1

    @rule(slot=st.integers(0, 4_099))
    def free_or_occupy(self, slot: int) -> None:
        slot %= self.size
        if slot in self.free:
            self.slots.occupy(slot)
            self.free.remove(slot)
        else:
            self.slots.free(slot)
            self.free.add(slot)

    @invariant()
    def counts_and_versions_are_known(self) -> None:
        assert self.slots.free_count == len(self.free)
        every = np.arange(self.size)
        assert self.slots.generation(every).tolist() == list(self.versions.values())


TestSlots = SlotMachine.TestCase
TestSlots.settings = settings(max_examples=30, stateful_step_count=20)
