"""Paused requests keep their blocks within a budget and resume in the order they were paused."""

from random import Random

import numpy as np
import pytest

from dsv4kv.cache.allocators.paused import (
    BlockBudget,
    BlockCounts,
    PausedRequests,
    common_budget,
)
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


def test_beyond_the_budget_the_newest_are_evicted_until_the_others_can_resume() -> None:
    allocator = RefCountAllocator(9)
    paused = PausedRequests(allocator, budget_blocks=2)
    for name in ("first", "second", "third", "fourth"):
        paused.pause(name, allocator.acquire(2))
    assert paused.evict_over_budget() == ["fourth"]
    assert [name for name, _ in paused.resume()] == ["first", "second"]
    assert paused.counts().paused_available == 0
    assert paused.evict_over_budget() == []


def test_what_is_free_lets_requests_resume_before_any_is_evicted() -> None:
    allocator = RefCountAllocator(9)
    paused = PausedRequests(allocator, budget_blocks=2)
    for name in ("first", "second", "third"):
        paused.pause(name, allocator.acquire(2))
    assert paused.evict_over_budget() == []
    assert [name for name, _ in paused.resume()] == ["first", "second"]


def test_blocks_that_others_hold_make_no_room() -> None:
    allocator = RefCountAllocator(7)
    paused = PausedRequests(allocator, budget_blocks=1)
    shared, own = allocator.acquire(2), [allocator.acquire(1) for _ in range(3)]
    allocator.retain_memory_blocks(np.concatenate([shared, shared]))  # a request that runs
    allocator.acquire(1)
    paused.pause("old", own[0], missing=2)
    paused.pause("middle", own[1])
    paused.pause("new", np.concatenate([shared, own[2]]))
    # "new" gives back one block where three are missing: "middle" has to go as well
    assert paused.evict_over_budget() == ["new", "middle"]
    assert [name for name, _ in paused.resume()] == ["old"]


@pytest.mark.parametrize("seed", range(60))
def test_no_more_are_evicted_than_a_plain_search_finds(seed: int) -> None:
    draw = Random(seed)
    allocator = RefCountAllocator(41)
    running = allocator.acquire(draw.randint(1, 12))
    plain: list[tuple[set[int], int]] = []
    paused = PausedRequests(allocator, draw.randint(0, 12))
    for name in range(draw.randint(1, 6)):
        pool = [block for held, _ in plain for block in held] + running.tolist()
        shared = set(draw.sample(pool, draw.randint(0, min(4, len(set(pool))))))
        allocator.retain_memory_blocks(np.array(sorted(shared), np.int64))
        held = np.concatenate([sorted(shared), allocator.acquire(draw.randint(1, 5))])
        plain.append((set(held.astype(np.int64).tolist()), draw.randint(1, 3)))
        paused.pause(name, held.astype(np.int64), plain[-1][1])
    allocator.acquire(max(0, allocator.num_free - draw.randint(0, 3)))  # others that run
    expected = plain_evictions(plain, running.tolist(), allocator.num_free, paused._budget)
    evicted = paused.evict_over_budget()
    assert evicted == list(range(len(plain)))[::-1][:expected]
    paused.resume()
    assert paused.counts().paused_available >= 0


def plain_evictions(
    paused: list[tuple[set[int], int]], running: list[int], free: int, budget: int
) -> int:
    """The fewest of the newest without which what cannot resume keeps to the budget."""
    for evicted in range(len(paused) + 1):
        kept = paused[: len(paused) - evicted]
        still = set(running).union(*(held for held, _ in kept))
        room = free + len(set[int]().union(*(held for held, _ in paused)) - still)
        able = 0
        while able < len(kept) and sum(missing for _, missing in kept[: able + 1]) <= room:
            able += 1
        active = set(running).union(*(held for held, _ in kept[:able]))
        if len(set[int]().union(*(held for held, _ in kept[able:])) - active) <= budget:
            return evicted
    raise AssertionError("without paused requests nothing is over budget")


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


def test_the_newest_can_be_evicted_where_nobody_else_gives_blocks_back() -> None:
    allocator = RefCountAllocator(5)
    paused = PausedRequests(allocator, budget_blocks=4)
    for name in ("old", "new"):
        paused.pause(name, allocator.acquire(2))
    assert paused.evict_over_budget() == []
    assert (paused.evict_newest(), allocator.num_free) == ("new", 2)
    assert [name for name, _ in paused.resume()] == ["old"]
    with pytest.raises(CacheError, match="no request is paused"):
        paused.evict_newest()


def test_forgetting_gives_no_blocks_back() -> None:
    allocator = RefCountAllocator(5)
    paused = PausedRequests(allocator, budget_blocks=4)
    paused.pause("old", allocator.acquire(1))
    paused.pause("new", allocator.acquire(1))
    assert paused.forget() == ["old", "new"]
    assert (len(paused), allocator.num_held) == (0, 2)


def test_a_pipeline_has_what_its_least_rank_has_and_unified_memory_is_the_sum() -> None:
    ranks = [BlockBudget(100, 20), BlockBudget(90, 30), BlockBudget(110, 25)]
    common = common_budget(ranks)
    assert common == BlockBudget(90, 20)
    assert (common.pool_blocks(unified=False), common.pool_blocks(unified=True)) == (90, 110)
    with pytest.raises(ConfigError, match="name at least one"):
        common_budget([])
