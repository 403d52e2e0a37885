"""The prefix cache over rows: one contiguous KV row (slot) per prompt."""

import sys
import threading

import numpy as np
import pytest

from dsv4kv.cache.slots import SlotAllocator
from dsv4kv.errors import ConfigError, NotOwner, OutOfBlocks
from dsv4kv.prefix.index import Lease
from dsv4kv.prefix.radix import NOTHING, Found, PrefixCacheManager
from tests.prefix.trees import check_tree, every_run


def cache(capacity: int = 100) -> PrefixCacheManager:
    return PrefixCacheManager(capacity)


def row(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, dtype=np.int32)


def test_an_empty_cache_finds_nothing() -> None:
    assert cache().find(row(1, 2)) == NOTHING
    assert cache().find(row()) == NOTHING


@pytest.mark.parametrize("length", range(1, 6))
def test_a_prefix_is_found_to_the_token(length: int) -> None:
    rows = cache()
    rows.insert_row(row(1, 2, 3, 4, 5), slot=7, version=3)
    assert rows.find(row(*[1, 2, 3, 4, 5][:length], 9, 9)) == Found(length, 7, 3)


def test_each_branch_names_the_row_that_holds_it() -> None:
    rows = cache()
    rows.insert_row(row(1, 2, 3, 4), slot=0, version=1)
    rows.insert_row(row(1, 2, 8, 9), slot=1, version=1)
    assert rows.find(row(1, 2, 3, 4)) == Found(4, 0, 1)
    assert rows.find(row(1, 2, 8)) == Found(3, 1, 1)


def test_what_two_rows_hold_is_found_in_the_newer_one() -> None:
    rows = cache()
    rows.insert_row(row(1, 2, 3, 4), slot=0, version=1)
    rows.insert_row(row(1, 2, 8, 9), slot=1, version=5)
    assert rows.find(row(1, 2, 7)) == Found(2, 1, 5)
    rows.insert_row(row(1, 2, 3, 4), slot=2, version=1)
    assert rows.find(row(1, 2, 3, 4)) == Found(4, 2, 1)


def test_what_was_recorded_is_valid_until_the_slot_is_handed_out_again() -> None:
    rows, slots = cache(), SlotAllocator(2)
    slot = slots.alloc()
    rows.insert_row(row(1, 2, 3), slot, slots.version(slot))
    slots.free(slot)
    found = rows.find(row(1, 2, 3))
    assert slots.version(found.slot) == found.version
    slots.occupy(found.slot)  # reuse in place
    assert slots.version(found.slot) == found.version
    slots.free(found.slot)
    assert slots.alloc() == found.slot
    assert slots.version(found.slot) != found.version


def test_a_prompt_longer_than_the_capacity_is_cached_as_far_as_there_is_room() -> None:
    rows = cache(capacity=10)
    prompt = np.arange(25, dtype=np.int32)
    insertion = rows.insert_row(prompt, slot=0, version=1)
    assert (insertion.present, insertion.stored) == (0, 10)
    assert rows.find(prompt).length == 10
    assert rows.insert_row(prompt, slot=1, version=1).present == 10


def test_the_capacity_is_never_exceeded_and_the_oldest_goes() -> None:
    rows = cache(capacity=10)
    rows.insert_row(row(1, 1, 1, 1, 1), 0, 1)
    rows.insert_row(row(2, 2, 2, 2, 2), 1, 1)
    rows.find(row(1))
    rows.insert_row(row(3, 3, 3), 2, 1)
    assert rows.stats().cached == 10
    # Of the first prompt only its first token was used, and of old chains the end goes first.
    assert [rows.match(row(*[t] * 5)).length for t in (1, 2, 3)] == [2, 5, 3]


def test_a_prompt_does_not_evict_its_own_prefix_to_make_room() -> None:
    rows = cache(capacity=6)
    rows.insert_row(row(1, 2, 3, 4), 0, 1)
    assert rows.insert_row(row(1, 2, 3, 4, 5, 6, 7, 8), 1, 1).stored == 6
    assert rows.find(row(1, 2, 3, 4, 5, 6, 7, 8)).length == 6


def test_with_all_pinned_eviction_refuses_and_insertion_stores_nothing() -> None:
    rows = cache(capacity=4)
    rows.insert_row(row(1, 2, 3, 4), 0, 1)
    lease = rows.pin(row(1, 2, 3, 4))
    with pytest.raises(OutOfBlocks, match="1 are to be evicted and 0 of 4 cached may be"):
        rows.evict(1)
    assert rows.insert_row(row(9, 9), 1, 1).stored == 0
    assert rows.find(row(9, 9)) == NOTHING
    rows.release(lease)
    assert rows.insert_row(row(9, 9), 1, 1).stored == 2


def test_finding_after_eviction_never_raises() -> None:
    rows = cache()
    prompts = [row(1, 2, 3), row(1, 2, 4, 5), row(6, 7)]
    for slot, prompt in enumerate(prompts):
        rows.insert_row(prompt, slot, 1)
    for left in range(rows.stats().cached, -1, -1):
        for prompt in prompts:
            assert rows.find(prompt).length <= len(prompt)
        if left:
            rows.evict(1)
    assert [rows.find(prompt) for prompt in prompts] == [NOTHING] * 3


def test_a_pinned_leaf_keeps_its_ancestors() -> None:
    rows = cache()
    rows.insert_row(row(1, 2, 3, 4), 0, 1)
    rows.insert_row(row(1, 2, 8, 9), 1, 1)
    lease = rows.pin(row(1, 2, 3, 4))
    rows.evict(rows.stats().evictable)
    assert rows.match(row(1, 2, 3, 4)).length == 4
    assert rows.match(row(1, 2, 8, 9)).length == 2
    rows.release(lease)


def test_a_released_chain_goes_from_its_end() -> None:
    rows = cache()
    rows.insert_row(row(1, 2, 3, 4), 0, 1)
    rows.release(rows.pin(row(1, 2)))
    lengths = []
    while rows.stats().evictable:
        rows.evict(1)
        lengths.append(rows.match(row(1, 2, 3, 4)).length)
    assert lengths == [3, 2, 1, 0]


def test_a_lease_ends_once() -> None:
    rows = cache()
    rows.insert_row(row(1, 2), 0, 1)
    lease = rows.pin(row(1, 2))
    rows.release(lease)
    with pytest.raises(NotOwner, match="has been released before"):
        rows.release(lease)
    with pytest.raises(NotOwner, match="pin the chain again"):
        rows.extend_row(lease, row(3), 0, 1)
    check_tree(rows, [])


def test_copying_tells_both_slots_and_how_many_tokens() -> None:
    calls = []
    rows = PrefixCacheManager(100, copy_kv=lambda *call: calls.append(call))
    rows.insert_row(row(1, 2, 3), slot=4, version=1)
    assert rows.copy_kv(row(1, 2, 9), to_slot=6) == Found(2, 4, 1)
    assert rows.copy_kv(row(9), to_slot=6) == NOTHING
    assert calls == [(4, 6, 2)]


def test_what_is_copied_is_pinned_meanwhile_and_released_if_copying_fails() -> None:
    pinned = []

    def copy(*_: int) -> None:
        pinned.append(rows.stats().pinned)
        raise RuntimeError("no copy")

    rows = PrefixCacheManager(100, copy_kv=copy)
    rows.insert_row(row(1, 2, 3), 0, 1)
    with pytest.raises(RuntimeError, match="no copy"):
        rows.copy_kv(row(1, 2, 3), 1)
    assert pinned == [3]
    assert rows.stats().pinned == 0


def test_copying_without_a_way_to_copy_is_refused() -> None:
    with pytest.raises(ConfigError, match="no copy_kv was given"):
        cache().copy_kv(row(1), 0)


def test_one_edge_holds_a_run_of_tokens_at_no_more_than_8_bytes_each() -> None:
    rows = cache(10**6)
    for slot in range(4):
        prompt = np.full(32_768, slot, dtype=np.int32)
        rows.insert_row(prompt, slot, 1)
    runs = list(every_run(rows._keeper.tree.root))
    assert len(runs) == 4
    held = sum(
        sys.getsizeof(run) + sys.getsizeof(run.keys) + sys.getsizeof(run.values) for run in runs
    )
    assert held <= 8 * rows.stats().cached


def test_what_was_evicted_from_a_long_run_does_not_stay_in_memory() -> None:
    rows = cache(10**6)
    rows.insert_row(np.zeros(100_000, dtype=np.int32), 0, 1)
    for _ in range(90):
        rows.evict(1_000)
    (run,) = every_run(rows._keeper.tree.root)
    assert len(run.keys) <= 8 * rows.stats().cached


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_cache_of_nothing_is_refused(capacity: int) -> None:
    with pytest.raises(ConfigError, match="give at least 1"):
        PrefixCacheManager(capacity)


@pytest.mark.parametrize(
    "tokens", [np.array([1.5]), np.array([-1]), np.array([2**31]), np.array([[1, 2]])]
)
def test_what_is_no_token_is_refused(tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    with pytest.raises(ConfigError, match="tokens must be"):
        cache().find(tokens)


def test_tokens_of_any_whole_number_type_are_the_same() -> None:
    rows = cache()
    rows.insert_row(np.array([5, 6, 7], dtype=np.int64), 0, 1)
    assert rows.find(np.array([5, 6, 7], dtype=np.uint16)).length == 3


def test_two_threads_may_share_a_cache() -> None:
    rows = cache(capacity=200)
    errors: list[BaseException] = []
    leases: list[Lease] = []
    interval = sys.getswitchinterval()

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for turn in range(400):
                prompt = random.integers(0, 3, random.integers(1, 30)).astype(np.int32)
                lease = rows.pin(prompt)
                assert rows.match(prompt).length >= lease.length
                rows.extend_row(lease, prompt[lease.length :], seed, turn)
                rows.release(lease)
        except BaseException as error:
            errors.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    check_tree(rows, leases)


def test_a_row_that_was_handed_out_again_is_not_copied() -> None:
    calls, slots = [], SlotAllocator(2)
    rows = PrefixCacheManager(100, None, lambda *call: calls.append(call), slots.version)
    slot = slots.alloc()
    rows.insert_row(row(1, 2, 3), slot, slots.version(slot))
    slots.free(slot)
    assert rows.copy_kv(row(1, 2, 3), 1) == Found(3, slot, 1)
    assert slots.alloc() == slot
    assert rows.copy_kv(row(1, 2, 3), 1) == NOTHING
    assert calls == [(slot, 1, 3)]


def test_what_an_older_row_still_holds_is_found_when_the_newer_one_is_gone() -> None:
    slots = SlotAllocator(3)
    rows = PrefixCacheManager(100, version=slots.version)
    older, newer = slots.alloc(), slots.alloc()
    rows.insert_row(row(1, 2, 3), older, 1)
    rows.insert_row(row(1, 2, 3, 4), newer, 1)
    assert rows.find(row(1, 2, 3, 4)) == Found(4, newer, 1)
    slots.free(newer)
    assert slots.alloc() == newer
    assert rows.find(row(1, 2, 3, 4)) == Found(3, older, 1)
    rows.insert_row(row(1, 9), newer, 2)
    assert rows.find(row(1, 2)) == Found(2, older, 1)


def test_rows_that_are_gone_are_not_remembered_for_ever() -> None:
    slots = SlotAllocator(2)
    rows = PrefixCacheManager(100, version=slots.version)
    for _ in range(50):
        slot = slots.alloc()
        rows.insert_row(row(1, 2, 3), slot, slots.version(slot))
        slots.free(slot)
    (run,) = every_run(rows._keeper.tree.root)
    assert len(run.values) <= 2 * slots.max_slots
