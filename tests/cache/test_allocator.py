"""Blocks are handed out once, taken back from their owner only, and never lost."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.allocators.stack import BlockAllocator, Ids
from dsv4kv.errors import ConfigError, NotOwner, OutOfBlocks
from tests.cache.caches import allocator_snapshot

LANES = pytest.mark.parametrize("lanes", [1, 3])


def ids(*blocks: int) -> Ids:
    return np.array(blocks, dtype=np.int64)


def refuses(allocator: BlockAllocator, release: Callable[[], object], reason: str) -> None:
    before = allocator_snapshot(allocator)
    with pytest.raises(NotOwner, match=reason):
        release()
    assert allocator_snapshot(allocator) == before


@LANES
def test_lower_ids_are_taken_first(lanes: int) -> None:
    allocator = BlockAllocator(8, lanes)
    first = np.atleast_2d(allocator.acquire(3))
    second = np.atleast_2d(allocator.acquire(2))
    assert [sorted(lane) for lane in first.tolist()] == [[0, 1, 2]] * lanes
    assert [sorted(lane) for lane in second.tolist()] == [[3, 4]] * lanes


@LANES
def test_ids_have_a_row_for_each_lane(lanes: int) -> None:
    allocator = BlockAllocator(8, lanes)
    assert allocator.acquire(2).shape == ((2,) if lanes == 1 else (lanes, 2))
    assert allocator.acquire(0).shape == ((0,) if lanes == 1 else (lanes, 0))


@LANES
def test_free_and_held_always_add_up(lanes: int) -> None:
    allocator = BlockAllocator(8, lanes)
    for count in (3, 0, 5):
        allocator.acquire(count)
        assert allocator.num_free + allocator.num_held == 8
    assert allocator.num_free == 0


@LANES
@pytest.mark.parametrize("count", [5, 10**12, -1])
def test_more_than_is_free_is_refused_and_changes_nothing(lanes: int, count: int) -> None:
    allocator = BlockAllocator(8, lanes)
    allocator.acquire(4)
    before = allocator_snapshot(allocator)
    with pytest.raises(OutOfBlocks, match=f"{count} blocks are needed and 4 of 8 are free"):
        allocator.acquire(count)
    assert allocator_snapshot(allocator) == before


@LANES
def test_the_ids_returned_are_the_callers_own(lanes: int) -> None:
    allocator = BlockAllocator(8, lanes)
    taken = allocator.acquire(4)
    before = allocator_snapshot(allocator)
    taken[...] = 7
    assert allocator_snapshot(allocator) == before


@LANES
def test_ids_given_back_may_be_written_over(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    taken = allocator.acquire(4)
    allocator.release(taken)
    taken[...] = 0
    assert np.unique(np.atleast_2d(allocator.acquire(4))[0]).tolist() == [0, 1, 2, 3]


@LANES
def test_blocks_may_come_back_in_any_order_and_number(lanes: int) -> None:
    allocator = BlockAllocator(6, lanes)
    taken = allocator.acquire(6)
    allocator.release(taken[..., [4, 1]])
    allocator.release(taken[..., [0]])
    allocator.release(taken[..., [5, 2, 3]][..., ::-1])
    assert allocator.num_free == 6


@LANES
def test_giving_back_nothing_changes_nothing(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    taken = allocator.acquire(2)
    before = allocator_snapshot(allocator)
    allocator.release(taken[..., :0])
    assert allocator_snapshot(allocator) == before


@LANES
def test_a_block_given_back_twice_is_refused(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    taken = allocator.acquire(2)
    allocator.release(taken)
    refuses(allocator, lambda: allocator.release(taken), "not all are held")


@LANES
def test_a_block_named_twice_is_refused(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    twice = allocator.acquire(3)[..., [0, 2, 0]]
    refuses(allocator, lambda: allocator.release(twice), "one is named twice")


@LANES
def test_a_block_named_more_often_than_there_are_blocks_is_refused(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    often = allocator.acquire(1).repeat(100, axis=-1)
    refuses(allocator, lambda: allocator.release(often), "not all are held")


@LANES
def test_a_block_that_was_never_handed_out_is_refused(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    mixed = allocator.acquire(2)
    mixed[..., 1] = 3
    refuses(allocator, lambda: allocator.release(mixed), "not all are held")


@LANES
@given(st.integers(-(2**63), 2**63 - 1).filter(lambda block: not 0 <= block < 4))
def test_an_id_outside_the_pool_is_refused(lanes: int, block: int) -> None:
    allocator = BlockAllocator(4, lanes)
    taken = allocator.acquire(4)
    taken[..., 2] = block
    refuses(allocator, lambda: allocator.release(taken), "not all are")


@LANES
@pytest.mark.parametrize("block", range(-16, 0))
def test_no_negative_id_counts_from_an_end(lanes: int, block: int) -> None:
    allocator = BlockAllocator(4, lanes)
    taken = allocator.acquire(4)[..., :1]
    taken[...] = block
    refuses(allocator, lambda: allocator.release(taken), "not all are")


def test_the_same_block_of_another_lane_is_not_meant() -> None:
    allocator = BlockAllocator(4, lanes=3)
    taken = allocator.acquire(4)
    allocator.release(taken[:, [0]])
    others = taken[:, [1]].copy()
    others[1, 0] = taken[1, 0]  # free in lane 1, though held ids surround it
    refuses(allocator, lambda: allocator.release(others), "not all are held")


@pytest.mark.parametrize("shape", [(), (3, 1), (1, 3)])
def test_ids_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    allocator = BlockAllocator(4)
    taken = allocator.acquire(3)
    odd = taken[: int(np.prod(shape))].reshape(shape)
    refuses(allocator, lambda: allocator.release(odd), "shape .* is not that of 1 lanes")


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 3)])
def test_ids_without_a_row_for_each_lane_are_refused(shape: tuple[int, ...]) -> None:
    allocator = BlockAllocator(4, lanes=3)
    allocator.acquire(4)
    odd = np.zeros(shape, dtype=np.int64)
    refuses(allocator, lambda: allocator.release(odd), "shape .* is not that of 3 lanes")


@LANES
def test_a_generation_grows_whenever_a_block_is_handed_out(lanes: int) -> None:
    allocator = BlockAllocator(2, lanes)
    taken = allocator.acquire(2)
    first = allocator.generation(taken)
    allocator.release(taken)
    second = allocator.generation(allocator.acquire(2))
    assert first.shape == taken.shape
    assert (second > first).all()


@LANES
def test_blocks_come_back_with_their_generations(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    taken = allocator.acquire(3)
    allocator.release(taken, allocator.generation(taken))
    assert allocator.num_free == 4


@LANES
def test_an_old_holder_cannot_give_back_a_newer_ones_blocks(lanes: int) -> None:
    allocator = BlockAllocator(1, lanes)
    taken = allocator.acquire(1)
    old = allocator.generation(taken)
    allocator.release(taken)
    allocator.acquire(1)
    refuses(allocator, lambda: allocator.release(taken, old), "not all are still held by who")


@LANES
def test_generations_beyond_the_pool_are_refused(lanes: int) -> None:
    allocator = BlockAllocator(2, lanes)
    beyond = allocator.acquire(1) + 2
    generations = np.zeros_like(beyond)
    refuses(allocator, lambda: allocator.release(beyond, generations), "Nothing was changed")


@LANES
def test_held_blocks_pass_the_check_and_stay_held(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    taken = allocator.acquire(3)
    before = allocator_snapshot(allocator)
    allocator.check_held(taken)
    allocator.check_held(taken[..., :0])
    assert allocator_snapshot(allocator) == before
    allocator.release(taken)


@LANES
def test_blocks_that_are_free_or_named_twice_fail_the_check(lanes: int) -> None:
    allocator = BlockAllocator(4, lanes)
    taken = allocator.acquire(2)
    refuses(allocator, lambda: allocator.check_held(taken[..., [0, 0]]), "named twice")
    refuses(allocator, lambda: allocator.check_held(taken + 1), "not all are held")


def test_a_message_names_the_unit_and_the_first_ids() -> None:
    allocator = BlockAllocator(20, unit="slots")
    with pytest.raises(NotOwner, match=r"^slots 0, 1, 2, 3, 4, 5, 6, 7, …: not all are held"):
        allocator.release(np.arange(12))
    with pytest.raises(NotOwner, match=r"^slots 5, 6: "):
        allocator.release(ids(5, 6))


@pytest.mark.parametrize(("blocks", "lanes"), [(0, 1), (-1, 1), (1, 0)])
def test_a_pool_of_nothing_is_refused(blocks: int, lanes: int) -> None:
    with pytest.raises(ConfigError, match="give at least 1"):
        BlockAllocator(blocks, lanes)
