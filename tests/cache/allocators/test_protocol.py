"""Whatever the strategy, an allocator hands out once and takes back from the holder only."""

import numpy as np
import pytest

from dsv4kv.cache.allocators import make_allocator
from dsv4kv.cache.allocators.contract import Allocator
from dsv4kv.choices import ALLOCATORS
from dsv4kv.errors import ConfigError, NotOwner, OutOfBlocks

EVERY = pytest.mark.parametrize(
    "allocator",
    [(name, lanes) for name in ALLOCATORS for lanes in (1, 3)],
    ids=lambda given: f"{given[0]}-{given[1]}",
    indirect=True,
)


@pytest.fixture
def allocator(request: pytest.FixtureRequest) -> Allocator:
    name, lanes = request.param
    return make_allocator(name, 8, lanes)


def refuses(allocator: Allocator, ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    before = (allocator.num_free, allocator.num_held)
    with pytest.raises(NotOwner, match=r"Nothing was changed\."):
        allocator.release(ids)
    assert (allocator.num_free, allocator.num_held) == before


@EVERY
def test_as_many_blocks_as_asked_for_can_be_had(allocator: Allocator) -> None:
    assert (allocator.num_blocks, allocator.num_free, allocator.num_held) == (8, 8, 0)
    taken = np.atleast_2d(allocator.acquire(8))
    assert [sorted(lane) for lane in taken.tolist()] == [list(range(8))] * allocator.lanes
    assert (allocator.num_free, allocator.num_held) == (0, 8)


@EVERY
def test_ids_have_a_row_for_each_lane(allocator: Allocator) -> None:
    lanes = allocator.lanes
    assert allocator.acquire(2).shape == ((2,) if lanes == 1 else (lanes, 2))
    assert allocator.acquire(0).shape == ((0,) if lanes == 1 else (lanes, 0))


@EVERY
def test_more_than_is_free_is_refused(allocator: Allocator) -> None:
    taken = allocator.acquire(6)
    for count in (3, -1):
        with pytest.raises(OutOfBlocks, match=f"{count} blocks are needed and 2 of 8 are free"):
            allocator.acquire(count)
    assert allocator.num_held == taken.shape[-1]


@EVERY
def test_the_ids_returned_are_the_callers_own(allocator: Allocator) -> None:
    taken = allocator.acquire(4)
    again = taken.copy()
    taken[...] = 7
    rest = np.atleast_2d(allocator.acquire(4))
    assert not set(rest[0].tolist()) & set(np.atleast_2d(again)[0].tolist())
    allocator.release(again)


@EVERY
def test_what_is_not_held_is_refused(allocator: Allocator) -> None:
    taken = allocator.acquire(4)
    refuses(allocator, taken[..., [0, 1, 0]])
    for bad in (-1, -8, 8, 2**40):
        odd = taken.copy()
        odd[..., 1] = bad
        refuses(allocator, odd)
    allocator.release(taken)
    refuses(allocator, taken)


@EVERY
def test_a_refusal_in_the_last_lane_leaves_the_first_as_it_was(allocator: Allocator) -> None:
    taken = allocator.acquire(2)
    odd = taken.copy()
    odd[..., -1:][-1] = 99
    refuses(allocator, odd)
    allocator.check_held(taken)


@EVERY
def test_ids_of_another_shape_are_refused(allocator: Allocator) -> None:
    taken = allocator.acquire(4)
    refuses(allocator, np.atleast_2d(taken)[:1] if allocator.lanes == 1 else taken[0])


@EVERY
def test_an_old_holder_cannot_give_back_a_newer_ones_blocks(allocator: Allocator) -> None:
    taken = allocator.acquire(8)
    old = allocator.generation(taken)
    allocator.release(taken, old)
    taken = allocator.acquire(8)
    with pytest.raises(NotOwner, match="not all are still held by who took them"):
        allocator.release(taken, old)
    assert (allocator.generation(taken) > old).any()
    assert allocator.num_held == 8


@EVERY
def test_only_held_ids_named_once_pass_the_check(allocator: Allocator) -> None:
    taken = allocator.acquire(3)
    allocator.check_held(taken)
    for odd in (taken[..., [0, 0]], taken + 5):
        with pytest.raises(NotOwner):
            allocator.check_held(odd)


@pytest.mark.parametrize("kind", [np.int32, np.uint64, np.int8])
@EVERY
def test_ids_of_any_whole_number_type_are_taken_back(allocator: Allocator, kind: type) -> None:
    taken = allocator.acquire(4)
    allocator.check_held(taken.astype(kind))
    generations = allocator.generation(taken.astype(kind))
    assert allocator.release(taken.astype(kind), generations) == 4
    refuses(allocator, taken.astype(kind))


@EVERY
def test_ids_that_are_no_whole_numbers_are_refused(allocator: Allocator) -> None:
    taken = allocator.acquire(4)
    refuses(allocator, taken.astype(np.float64))
    assert allocator.release(taken[..., :0].astype(np.float64)) == 0


def test_an_allocator_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="'buddy' is not an allocator: choose one of stack, "):
        make_allocator("buddy", 8)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_pool_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"give at least \d"):
        make_allocator(name, 0)
