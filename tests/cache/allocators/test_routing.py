"""Experts chosen per token: kept with a cached block, gone when it is handed out again."""

import numpy as np
import pytest

from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.cache.allocators.routing import Routing, RoutingStore
from dsv4kv.errors import ConfigError
from tests.cache.allocators.blocks import chain, ids

LAYERS, TOP_K = 3, 2


def store() -> RoutingStore:
    return RoutingStore(block_tokens=4, num_layers=LAYERS, top_k=TOP_K)


def routing(tokens: int, first: int = 0) -> Routing:
    size = LAYERS * TOP_K
    numbers = np.arange(first * size, (first + tokens) * size, dtype=np.int16)
    return numbers.reshape(tokens, LAYERS, TOP_K)


def test_what_was_stored_for_a_chain_is_put_together_again() -> None:
    experts = store()
    experts.store_per_block(ids(5, 2, 9), routing(10))
    for total in (0, 1, 4, 7, 10):
        found = experts.reconstruct(ids(5, 2, 9), total)
        assert found is not None
        assert found.tolist() == routing(10)[:total].tolist()


def test_tokens_of_a_block_may_come_one_by_one() -> None:
    experts = store()
    for at in range(3):
        experts.store_block(7, np.array([at]), routing(1, at))
    found = experts.get_block(7)
    assert found is not None
    assert found.tolist() == routing(3).tolist()


def test_a_gap_hides_what_comes_after_it() -> None:
    experts = store()
    experts.store_block(7, np.array([0, 2]), routing(2))
    found = experts.get_block(7)
    assert found is not None
    assert len(found) == 1
    experts.store_block(8, np.array([1]), routing(1))
    assert experts.get_block(8) is None


def test_a_chain_with_a_missing_block_gives_none() -> None:
    experts = store()
    experts.store_per_block(ids(5), routing(4))
    experts.store_per_block(ids(9), routing(2))
    assert experts.get_block(2) is None
    assert experts.reconstruct(ids(5, 2), 5) is None
    assert experts.reconstruct(ids(5, 9), 7) is None
    assert experts.reconstruct(ids(5), 5) is None
    assert experts.reconstruct(ids(5, 9), 6) is not None


def test_what_is_returned_is_the_callers_own() -> None:
    experts = store()
    experts.store_per_block(ids(5), routing(4))
    found = experts.get_block(5)
    assert found is not None
    found[:] = -1
    assert experts.reconstruct(ids(5), 4) is not None
    again = experts.get_block(5)
    assert again is not None
    assert again.tolist() == routing(4).tolist()


def test_routing_stays_with_a_cached_block_and_goes_when_it_is_handed_out() -> None:
    experts = store()
    allocator = RefCountAllocator(3, routing=experts)
    taken = chain(allocator, 10, 11)
    experts.store_per_block(taken, routing(8))
    allocator.release_memory_blocks(taken)
    assert experts.reconstruct(taken, 8) is not None
    (again,) = allocator.acquire(1)  # evicts the last of the chain
    assert again == taken[1]
    assert experts.get_block(int(taken[1])) is None
    assert experts.get_block(int(taken[0])) is not None
    allocator.reset()
    assert experts.get_block(int(taken[0])) is None


@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 2), (3, 3, 2)])
def test_routing_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"routing must have shape \(4, 3, 2\)"):
        store().store_block(0, np.arange(4), np.zeros(shape, dtype=np.int16))


def test_positions_outside_a_block_and_tokens_without_one_are_refused() -> None:
    for position in (-1, 4):
        with pytest.raises(ConfigError, match=r"are 0\.\.3"):
            store().store_block(0, np.array([position]), routing(1))
    with pytest.raises(ConfigError, match="5 tokens do not fit into 1 blocks of 4"):
        store().store_per_block(ids(0), routing(5))


def test_after_a_reset_no_block_has_any() -> None:
    experts = store()
    allocator = RefCountAllocator(5, routing=experts)
    taken = allocator.acquire(2)
    experts.store_per_block(taken, routing(8))
    allocator.release_memory_blocks(taken[:1])
    allocator.reset()
    assert [experts.get_block(block) for block in taken.tolist()] == [None, None]
