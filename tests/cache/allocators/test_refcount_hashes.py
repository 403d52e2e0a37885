"""Registering hashes: idempotent, chained, never contradicting what is in use."""

import numpy as np
import pytest

from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.errors import CacheError, NotOwner
from tests.cache.allocators.blocks import cached, chain, ids, state
from tests.cache.allocators.test_refcount import refuses


def test_registering_twice_is_registering_once() -> None:
    allocator = RefCountAllocator(5)
    taken = chain(allocator, 10, 11)
    before = state(allocator)
    allocator.register_kv_block_hashes(taken, [10, 11], [0, 10])
    allocator.register_kv_block_hashes(taken[[1, 1]], [11, 11], [10, 10])
    assert state(allocator) == before


def test_another_hash_for_a_live_block_is_refused() -> None:
    allocator = RefCountAllocator(5)
    taken = chain(allocator, 10, 11)
    extra = allocator.acquire(1)
    both = np.concatenate([extra, taken[1:]])
    refuses(
        allocator,
        lambda: allocator.register_kv_block_hashes(both, [30, 12], [0, 10]),
        CacheError,
        "has hash 11 and cannot get 12",
    )


def test_two_hashes_for_one_block_in_one_call_are_refused() -> None:
    allocator = RefCountAllocator(5)
    twice = allocator.acquire(1)[[0, 0]]
    refuses(
        allocator,
        lambda: allocator.register_kv_block_hashes(twice, [10, 11], [0, 10]),
        CacheError,
        "has hash 10 and cannot get 11",
    )


@pytest.mark.parametrize("hash_", [0, -1])
def test_0_and_minus_1_are_no_hashes(hash_: int) -> None:
    allocator = RefCountAllocator(5)
    taken = allocator.acquire(1)
    refuses(
        allocator,
        lambda: allocator.register_kv_block_hashes(taken, [hash_], [0]),
        CacheError,
        "is no hash",
    )


def test_a_chain_is_registered_from_its_first_block_on() -> None:
    allocator = RefCountAllocator(5)
    taken = allocator.acquire(2)
    refuses(
        allocator,
        lambda: allocator.register_kv_block_hashes(taken, [11, 12], [10, 11]),
        CacheError,
        "follow hash 10, which no block has",
    )


def test_only_referenced_blocks_can_be_registered() -> None:
    allocator = RefCountAllocator(5)
    free = ids(3)
    rest = cached(allocator, 10)
    for blocks in (free, rest):
        with pytest.raises(NotOwner):
            allocator.register_kv_block_hashes(blocks, [10], [0])


def test_one_of_each_is_needed_for_every_block() -> None:
    allocator = RefCountAllocator(5)
    taken = allocator.acquire(2)
    with pytest.raises(CacheError, match="2 blocks, 1 hashes and 2 parents"):
        allocator.register_kv_block_hashes(taken, [10], [0, 10])


def test_blocks_filled_while_decoding_are_found_by_the_next_turn() -> None:
    allocator = RefCountAllocator(9)
    prompt = chain(allocator, 10, 11)
    answer = chain(allocator, 12, 13, parent=11)
    allocator.release_memory_blocks(np.concatenate([prompt, answer]))
    found = allocator.find_kv_blocks([10, 11, 12, 13, 14])
    assert found.tolist() == [*prompt.tolist(), *answer.tolist()]


@pytest.mark.parametrize("first_to_go", [0, 1])
def test_of_two_blocks_with_one_hash_the_other_is_found_when_one_goes(first_to_go: int) -> None:
    allocator = RefCountAllocator(5)
    twins = [chain(allocator, 10), chain(allocator, 10)]
    allocator.release_memory_blocks(twins.pop(first_to_go))
    assert allocator.evict_lru_blocks(1)
    assert allocator.find_kv_blocks([10]).tolist() == twins[0].tolist()
    allocator.release_memory_blocks(twins[0])
    assert allocator.evict_lru_blocks(1)
    assert allocator.find_kv_blocks([10]).size == 0


def test_of_three_blocks_with_one_hash_each_can_be_found_in_turn() -> None:
    allocator = RefCountAllocator(5)
    taken = [chain(allocator, 10) for _ in range(3)]
    for left in (2, 1, 0):
        (found,) = allocator.find_kv_blocks([10])
        allocator.release_memory_blocks(ids(int(found)))
        assert allocator.evict_lru_blocks(1)
        assert allocator.find_kv_blocks([10]).size == min(left, 1)
    assert len(taken) == 3
    assert allocator.num_unused == 4
