"""Blocks with several holders: counted per occurrence, cached when the last is done."""

from collections.abc import Callable

import numpy as np
import pytest

from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.cache.allocators.states import Chains
from dsv4kv.errors import CacheError, ConfigError, NotOwner
from tests.cache.allocators.blocks import cached, chain, ids, state


def refuses(
    allocator: RefCountAllocator, call: Callable[[], object], error: type[CacheError], why: str
) -> None:
    before = state(allocator)
    with pytest.raises(error, match=why):
        call()
    assert state(allocator) == before


def test_the_dummy_is_the_last_block_and_never_handed_out() -> None:
    allocator = RefCountAllocator(5)
    assert (allocator.dummy_block, allocator.num_blocks) == (4, 4)
    assert sorted(allocator.acquire(4).tolist()) == [0, 1, 2, 3]
    assert allocator.allocate_memory_blocks(1) is None
    refuses(allocator, lambda: allocator.release_memory_blocks(ids(4)), NotOwner, "not all")
    refuses(allocator, lambda: allocator.retain_memory_blocks(ids(4)), NotOwner, "not all")


def test_a_lack_of_memory_gives_none_and_changes_nothing() -> None:
    allocator = RefCountAllocator(5)
    allocator.acquire(3)
    before = state(allocator)
    assert allocator.allocate_memory_blocks(2) is None
    assert allocator.allocate_memory_blocks(-1) is None
    assert state(allocator) == before


def test_references_are_counted_for_each_time_a_block_is_named() -> None:
    allocator = RefCountAllocator(5)
    a, b = allocator.acquire(2).tolist()
    allocator.retain_memory_blocks(ids(a, a, b))
    assert allocator.refs(ids(a, b)).tolist() == [3, 2]
    allocator.release_memory_blocks(ids(a, b, a))
    assert allocator.refs(ids(a, b)).tolist() == [1, 1]
    allocator.release_memory_blocks(ids(a, b))
    assert allocator.num_unused == 4


def test_more_releases_than_references_are_refused() -> None:
    allocator = RefCountAllocator(5)
    a, b = allocator.acquire(2).tolist()
    allocator.retain_memory_blocks(ids(a))
    refuses(
        allocator,
        lambda: allocator.release_memory_blocks(ids(b, a, a, a)),
        NotOwner,
        "fewer references",
    )
    refuses(allocator, lambda: allocator.release_memory_blocks(ids(b, b)), NotOwner, "twice")


@pytest.mark.parametrize("policy", ["lru", "ref_zero"])
@pytest.mark.parametrize("block", [-5, -1, 3, 4, 99])
def test_ownership_is_checked_in_every_mode(policy: str, block: int) -> None:
    allocator = RefCountAllocator(5, policy)  # type: ignore[arg-type]
    taken = chain(allocator, 10, 11, 12)
    odd = ids(*taken.tolist()[:2], block)
    for call in (allocator.release_memory_blocks, allocator.retain_memory_blocks):
        refuses(allocator, lambda call=call: call(odd), NotOwner, "not")  # type: ignore[misc]


def test_a_cached_block_cannot_be_released_again() -> None:
    allocator = RefCountAllocator(5)
    taken = cached(allocator, 10, 11)
    refuses(allocator, lambda: allocator.release_memory_blocks(taken), NotOwner, "references")


def test_under_lru_a_registered_block_is_cached_and_others_are_freed() -> None:
    allocator = RefCountAllocator(9)
    registered, others = chain(allocator, 10, 11), allocator.acquire(2)
    allocator.release_memory_blocks(np.concatenate([registered, others]))
    assert (allocator.num_unused, allocator.num_cached, allocator.num_held) == (6, 2, 0)
    assert allocator.find_kv_blocks([10, 11]).tolist() == registered.tolist()


def test_under_ref_zero_a_block_is_freed_and_forgotten_at_once() -> None:
    allocator = RefCountAllocator(9, "ref_zero")
    cached(allocator, 10, 11)
    assert (allocator.num_unused, allocator.num_cached) == (8, 0)
    assert allocator.find_kv_blocks([10]).size == 0


def test_under_ref_zero_what_followed_a_freed_block_begins_a_chain_of_its_own() -> None:
    allocator = RefCountAllocator(9, "ref_zero")
    taken = chain(allocator, 10, 11, 12)
    allocator.release_memory_blocks(taken[:1])
    assert allocator.num_held == 2
    allocator.release_memory_blocks(taken[1:])
    assert allocator.num_unused == 8
    assert not allocator._states.chains.children[:-1].any()
    assert not allocator._states.chains.live[:-1].any()


def test_a_cached_block_can_be_held_again() -> None:
    allocator = RefCountAllocator(5)
    taken = cached(allocator, 10, 11)
    allocator.retain_memory_blocks(taken)
    assert (allocator.num_cached, allocator.num_held) == (0, 2)
    assert allocator.evict_lru_blocks(1) is False


def test_ids_returned_are_no_view_of_the_free_list() -> None:
    allocator = RefCountAllocator(5)
    taken = allocator.acquire(2)
    kept = taken.copy()
    taken[:] = 3
    assert not set(allocator.acquire(2).tolist()) & set(kept.tolist())


def test_a_matched_block_is_not_evicted_by_its_own_request() -> None:
    allocator = RefCountAllocator(5)
    matched = cached(allocator, 10, 11)
    other = cached(allocator, 20)
    new = allocator.allocate_memory_blocks(2, matched)
    assert new is not None
    assert not set(new.tolist()) & set(matched.tolist())
    assert allocator.find_kv_blocks([10, 11]).tolist() == matched.tolist()
    assert allocator.find_kv_blocks([20]).size == 0
    assert allocator.refs(np.concatenate([matched, other])).tolist() == [1, 1, 1]


def test_without_memory_beside_the_matched_blocks_nothing_is_taken() -> None:
    allocator = RefCountAllocator(5)
    matched = cached(allocator, 10, 11)
    before = state(allocator)
    assert allocator.allocate_memory_blocks(3, matched) is None
    assert state(allocator) == before


def test_availability_counts_free_and_evictable_less_what_will_be_matched() -> None:
    allocator = RefCountAllocator(7)
    allocator.acquire(2)
    cached(allocator, 10, 11, 12)
    assert allocator.is_memory_available(4)
    assert not allocator.is_memory_available(5)
    assert allocator.is_memory_available(2, potential_matched_count=2)
    assert not allocator.is_memory_available(3, potential_matched_count=2)
    assert allocator.num_free == 4


def test_reset_frees_everything_and_old_holders_hold_nothing() -> None:
    allocator = RefCountAllocator(7)
    taken = chain(allocator, 10, 11)
    old = allocator.generation(taken)
    cached(allocator, 20)
    allocator.reset()
    assert (allocator.num_unused, allocator.num_cached, allocator.num_held) == (6, 0, 0)
    assert allocator.find_kv_blocks([20]).size == 0
    refuses(allocator, lambda: allocator.release_memory_blocks(taken), NotOwner, "not all")
    again = allocator.acquire(6)
    assert (allocator.generation(again) > 0).all()
    assert (allocator.generation(taken) > old).all()


def test_references_of_blocks_that_do_not_exist_are_refused() -> None:
    allocator = RefCountAllocator(5)
    for block in (-1, 4, 99):
        with pytest.raises(NotOwner):
            allocator.refs(ids(block))


@pytest.mark.parametrize("total", [1, 0, -1])
def test_a_pool_without_a_block_beside_the_dummy_is_refused(total: int) -> None:
    with pytest.raises(ConfigError, match="give at least 2"):
        RefCountAllocator(total)


def test_what_is_said_to_be_available_can_be_had() -> None:
    """A matched block keeps those before it, whether they were matched or not."""
    allocator = RefCountAllocator(5)
    leaf = cached(allocator, 10, 11, 12)[-1:]
    assert not allocator.is_memory_available(2, matched=leaf)
    assert allocator.allocate_memory_blocks(2, leaf) is None
    assert not allocator.is_memory_available(-1)
    assert allocator.is_memory_available(1, matched=leaf)
    assert allocator.allocate_memory_blocks(1, leaf) is not None


def test_a_failed_allocation_leaves_the_order_and_tells_nobody() -> None:
    allocator, told = RefCountAllocator(6), list[str]()
    cached(allocator, 10, 11, 12)
    cached(allocator, 20, 21)
    allocator.observers.add(lambda event: told.append(event.kind))
    before = state(allocator)
    assert allocator.allocate_memory_blocks(3, allocator.find_kv_blocks([10, 11, 12])[-1:]) is None
    assert state(allocator) == before
    assert told == []


def test_a_held_leaf_without_those_before_it_is_looked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counting what it keeps passes every block before it, so it is counted when that changes."""
    allocator = RefCountAllocator(100)
    blocks = cached(allocator, *range(10, 60))
    allocator.retain_memory_blocks(blocks[-1:])
    assert (allocator.num_free, allocator.num_cached) == (49, 49)
    monkeypatch.setattr(Chains, "num_kept", None)
    assert allocator.num_free == 49
    assert allocator.acquire(49).size == 49
    assert allocator.num_free == 0
    allocator.is_memory_available(1)


def test_the_content_of_blocks_that_ref_zero_frees_is_told_to_be_lost() -> None:
    allocator, told = RefCountAllocator(5, "ref_zero"), list[tuple[str, list[int]]]()
    blocks = np.concatenate([chain(allocator, 10, 11), allocator.acquire(1)])
    allocator.observers.add(lambda event: told.append((event.kind, event.ids.tolist())))
    allocator.release_memory_blocks(blocks)
    assert told == [("released", blocks.tolist()), ("evicted", blocks[:2].tolist())]
