"""Paused requests keep their blocks within a budget and resume in the order they were paused."""

import numpy as np
import pytest

from dsv4kv.cache.allocators.paused import BlockCounts, PausedRequests
from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.errors import CacheError, ConfigError, NotOwner
from tests.cache.allocators.blocks import ids


def test_blocks_are_counted_once_however_many_requests_share_them() -> None:
    allocator = RefCountAllocator(11)
    paused = PausedRequests(allocator, budget_blocks=5)
    shared, a, b, c = allocator.acquire(2), *(allocator.acquire(1) for _ in range(3))
    allocator.retain_memory_blocks(np.concatenate([shared, shared]))
    paused.pause("a", np.concatenate([shared, a]))
    paused.pause("b", np.concatenate([shared, b]))
    # The running request c holds the shared blocks, too: they are active.
    assert paused.counts() == BlockCounts(
        total=10,
        total_used=5,
        total_available=5,
        active_used=3,
        active_available=2,
        paused_used=2,
        paused_available=3,
    )
    allocator.release_memory_blocks(np.concatenate([shared, c]))
    counts = paused.counts()
    assert (counts.active_used, counts.paused_used, counts.paused_available) == (0, 4, 1)


def test_requests_resume_oldest_first_and_none_overtakes() -> None:
    allocator = RefCountAllocator(7)
    paused = PausedRequests(allocator, budget_blocks=6)
    for name, missing in (("old", 2), ("middle", 3), ("new", 1)):
        paused.pause(name, allocator.acquire(1), missing)
    assert [name for name, _ in paused.resume()] == ["old"]
    assert allocator.num_unused == 1, "enough for the newest, whose turn it is not"
    allocator.release_memory_blocks(np.array([allocator.num_held - 1]))
    assert paused.resume() == []
    assert len(paused) == 2


def test_a_resumed_request_gets_the_blocks_it_was_missing() -> None:
    allocator = RefCountAllocator(5)
    paused = PausedRequests(allocator, budget_blocks=4)
    paused.pause("a", allocator.acquire(1), missing=2)
    ((name, blocks),) = paused.resume()
    assert (name, blocks.size) == ("a", 2)
    allocator.check_held(blocks)
    assert len(paused) == 0


def test_beyond_the_budget_the_newest_are_evicted() -> None:
    allocator = RefCountAllocator(9)
    paused = PausedRequests(allocator, budget_blocks=3)
    for name in ("first", "second", "third"):
        paused.pause(name, allocator.acquire(2))
    assert paused.evict_over_budget() == ["third", "second"]
    assert (allocator.num_unused, len(paused)) == (6, 1)
    assert paused.evict_over_budget() == []


def test_what_paused_requests_may_still_keep_is_not_for_running_ones() -> None:
    allocator = RefCountAllocator(9)
    assert PausedRequests(allocator, budget_blocks=3).counts().active_available == 5
    assert PausedRequests(allocator, budget_blocks=0).counts().active_available == 8


def test_pausing_twice_or_without_the_blocks_is_refused() -> None:
    allocator = RefCountAllocator(5)
    paused = PausedRequests(allocator, budget_blocks=2)
    paused.pause("a", allocator.acquire(1))
    with pytest.raises(CacheError, match="request a is paused already"):
        paused.pause("a", ids(0))
    with pytest.raises(NotOwner):
        paused.pause("b", ids(3))
    assert len(paused) == 1


@pytest.mark.parametrize("budget", [-1, 5])
def test_a_budget_that_cannot_be_kept_is_refused(budget: int) -> None:
    with pytest.raises(ConfigError, match=r"give 0\.\.4"):
        PausedRequests(RefCountAllocator(5), budget)
