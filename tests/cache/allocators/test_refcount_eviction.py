"""Eviction: the oldest leaves first, all that is asked for or none."""

import numpy as np
import pytest

from dsv4kv.cache.allocators.refcount import RefCountAllocator
from tests.cache.allocators.blocks import cached, chain, state


def order_of_going(allocator: RefCountAllocator, known: dict[str, list[int]]) -> list[str]:
    """Names of chains in the order in which their blocks go, one by one."""
    gone = []
    while allocator.evict_lru_blocks(1):
        for name, hashes in known.items():
            length = allocator.find_kv_blocks(hashes).size
            if length < len(hashes):
                gone.append(f"{name}{hashes.pop() % 10}")
    return gone


def test_the_oldest_chain_goes_first_and_each_from_its_end() -> None:
    allocator = RefCountAllocator(9)
    cached(allocator, 10, 11, 12)
    cached(allocator, 20, 21)
    known = {"a": [10, 11, 12], "b": [20, 21]}
    assert order_of_going(allocator, known) == ["a2", "a1", "a0", "b1", "b0"]


def test_using_a_chain_makes_it_the_newest() -> None:
    allocator = RefCountAllocator(9)
    old = cached(allocator, 10, 11)
    cached(allocator, 20)
    allocator.retain_memory_blocks(old)
    allocator.release_memory_blocks(old)
    assert order_of_going(allocator, {"a": [10, 11], "b": [20]}) == ["b0", "a1", "a0"]


def test_a_reset_that_keeps_the_prefix_cache_makes_what_was_held_the_newest() -> None:
    allocator = RefCountAllocator(9)
    old = cached(allocator, 10, 11)
    cached(allocator, 20)
    allocator.retain_memory_blocks(old)
    allocator.reset(preserve_prefix_cache=True)
    assert order_of_going(allocator, {"a": [10, 11], "b": [20]}) == ["b0", "a1", "a0"]


def test_touching_a_cached_chain_makes_it_the_newest() -> None:
    allocator = RefCountAllocator(9)
    old = cached(allocator, 10, 11)
    held = chain(allocator, 30)
    cached(allocator, 20)
    allocator.update_timestamps(np.concatenate([old, held, old]))
    assert allocator.num_cached == 3
    assert order_of_going(allocator, {"a": [10, 11], "b": [20]}) == ["b0", "a1", "a0"]


def test_a_cached_child_keeps_its_parent_even_if_the_parent_is_older() -> None:
    allocator = RefCountAllocator(9)
    parent = chain(allocator, 10)
    child = chain(allocator, 11, parent=10)
    allocator.release_memory_blocks(parent)
    cached(allocator, 20)
    allocator.release_memory_blocks(child)
    assert order_of_going(allocator, {"a": [10, 11], "b": [20]}) == ["b0", "a1", "a0"]


def test_a_referenced_child_keeps_its_parents() -> None:
    allocator = RefCountAllocator(9)
    parents = chain(allocator, 10, 11)
    child = chain(allocator, 12, parent=11)
    allocator.release_memory_blocks(parents)
    cached(allocator, 20)
    assert (allocator.num_cached, allocator.get_evictable_block_count()) == (3, 1)
    assert not allocator.is_memory_available(7)
    assert allocator.evict_lru_blocks(2) is False
    assert allocator.evict_lru_blocks(1) is True
    assert allocator.find_kv_blocks([10, 11, 12]).size == 3
    allocator.release_memory_blocks(child)
    assert allocator.get_evictable_block_count() == 3


def test_holding_only_a_child_keeps_its_parents() -> None:
    allocator = RefCountAllocator(9)
    blocks = cached(allocator, 10, 11, 12)
    allocator.retain_memory_blocks(blocks[1:2])
    assert allocator.get_evictable_block_count() == 1
    assert allocator.evict_lru_blocks(1)
    assert allocator.find_kv_blocks([10, 11, 12]).tolist() == blocks[:2].tolist()
    assert allocator.evict_lru_blocks(1) is False


def test_fewer_evictable_blocks_than_asked_for_touch_nothing() -> None:
    allocator = RefCountAllocator(9)
    cached(allocator, 10, 11)
    before = state(allocator)
    assert allocator.evict_lru_blocks(3) is False
    assert allocator.evict_lru_blocks(2) is True
    assert state(allocator) != before


@pytest.mark.parametrize("trunk_first", [False, True])
def test_many_at_once_are_those_that_go_one_by_one(trunk_first: bool) -> None:
    """Forks make parents wait: both ways must leave the same blocks."""
    for count in range(1, 41):
        one, many = RefCountAllocator(64), RefCountAllocator(64)
        for allocator in (one, many):
            trunk = chain(allocator, *range(1, 5))
            if trunk_first:
                allocator.release_memory_blocks(trunk)
            for branch in range(6):
                first = 100 * (branch + 1)
                tail = chain(allocator, *range(first, first + 6), parent=1 + branch % 4)
                allocator.release_memory_blocks(tail)
            if not trunk_first:
                allocator.release_memory_blocks(trunk)
        assert many.evict_lru_blocks(count)
        assert all(one.evict_lru_blocks(1) for _ in range(count))
        assert (
            many._states.chains.children[:-1].tolist() == one._states.chains.children[:-1].tolist()
        )
        left = [np.flatnonzero(a._states.hashes.of_block).tolist() for a in (one, many)]
        assert left[0] == left[1]


@pytest.mark.parametrize("count", [9, 10, 11])
def test_a_block_that_came_up_before_goes_as_soon_as_nothing_follows_it(count: int) -> None:
    """Also where all that followed it go together."""
    allocator = RefCountAllocator(30)
    old = cached(allocator, *range(10, 20))
    cached(allocator, 30)
    allocator.update_timestamps(old[1:])
    cached(allocator, 40)
    assert allocator.evict_lru_blocks(1)  # 10 comes up and waits, 30 goes
    assert not allocator.find_kv_blocks([30]).size
    assert allocator.evict_lru_blocks(count)
    assert allocator.num_cached == 11 - count
    assert allocator.find_kv_blocks(range(10, 20)).size == max(0, 10 - count)
    assert allocator.find_kv_blocks([40]).size == (count < 11)


def test_blocks_are_evicted_when_memory_is_short() -> None:
    allocator = RefCountAllocator(5)
    cached(allocator, 10, 11, 12)
    assert allocator.acquire(3).size == 3
    assert allocator.find_kv_blocks([10, 11, 12]).size == 1


def test_a_child_registered_below_a_cached_block_keeps_it() -> None:
    allocator = RefCountAllocator(9)
    cached(allocator, 10)
    chain(allocator, 11, parent=10)
    assert allocator.get_evictable_block_count() == 0
    assert allocator.evict_lru_blocks(1) is False


def test_the_order_outlives_any_number_of_uses() -> None:
    """Old entries of the queue are thrown away again and again."""
    allocator = RefCountAllocator(9)
    older, newer = chain(allocator, 10, 11), chain(allocator, 20, 21)
    used = chain(allocator, 30)
    allocator.release_memory_blocks(newer)  # the higher ids first
    allocator.release_memory_blocks(older)
    for _ in range(200):
        allocator.release_memory_blocks(used)
        allocator.retain_memory_blocks(used)
    allocator.release_memory_blocks(used)
    known = {"a": [10, 11], "b": [20, 21], "c": [30]}
    assert order_of_going(allocator, known) == ["b1", "b0", "a1", "a0", "c0"]


def test_a_parent_that_stepped_aside_waits_for_its_child_through_any_number_of_uses() -> None:
    allocator = RefCountAllocator(9)
    parent = chain(allocator, 10)
    child = chain(allocator, 11, parent=10)
    used = chain(allocator, 30)
    allocator.release_memory_blocks(parent)
    cached(allocator, 20)
    assert allocator.evict_lru_blocks(1)  # passes the parent, takes the other
    for _ in range(200):
        allocator.release_memory_blocks(used)
        allocator.retain_memory_blocks(used)
    cached(allocator, 40)
    allocator.release_memory_blocks(child)
    assert order_of_going(allocator, {"a": [10, 11], "d": [40]}) == ["d0", "a1", "a0"]
