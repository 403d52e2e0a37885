"""Observers hear of every change once it is made, and can do no harm."""

import numpy as np

from dsv4kv.cache.allocators.refcount import BlockEvent, BlockTotals, RefCountAllocator
from tests.cache.allocators.blocks import cached, chain, state


def test_every_change_is_told_in_order() -> None:
    allocator, told = RefCountAllocator(3), list[tuple[str, list[int]]]()
    allocator.observers.add(lambda event: told.append((event.kind, event.ids.tolist())))
    a, b = cached(allocator, 10, 11).tolist()
    allocator.acquire(1)
    allocator.retain_memory_blocks(np.array([a]))
    allocator.reset()
    assert told == [
        ("acquired", [a, b]),
        ("registered", [a, b]),
        ("released", [a, b]),
        ("evicted", [b]),
        ("acquired", [b]),
        ("retained", [a]),
        ("reset", sorted([a, b])),
    ]


def test_observers_are_told_after_the_state_is_committed() -> None:
    allocator, seen = RefCountAllocator(5), list[tuple[int, int, int]]()

    def look(_: BlockEvent) -> None:
        seen.append((allocator.num_unused, allocator.num_cached, allocator.num_held))

    allocator.observers.add(look)
    taken = chain(allocator, 10)
    allocator.release_memory_blocks(taken)
    allocator.evict_lru_blocks(1)
    assert seen == [(3, 0, 1), (3, 0, 1), (3, 1, 0), (4, 0, 0)]


def test_an_observer_that_raises_harms_nothing() -> None:
    quiet, noisy, told = RefCountAllocator(5), RefCountAllocator(5), list[str]()

    def fail(event: BlockEvent) -> None:
        event.ids[:] = 99
        raise RuntimeError("no")

    noisy.observers.add(fail)
    noisy.observers.add(lambda event: told.append(event.kind))
    for allocator in (quiet, noisy):
        cached(allocator, 10, 11)
    assert state(noisy) == state(quiet)
    assert told == ["acquired", "registered", "released"]
    assert noisy.observers.errors == 3
    assert str(noisy.observers.last_error) == "no"


def test_totals_count_blocks_by_what_happened_to_them() -> None:
    allocator, totals = RefCountAllocator(7), BlockTotals()
    allocator.observers.add(totals)
    cached(allocator, 10, 11)
    allocator.acquire(6)
    expected = {"acquired": 8, "registered": 2, "released": 2, "evicted": 2}
    assert totals.blocks == expected
    totals.clear()
    assert not totals.blocks
