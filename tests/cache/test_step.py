"""A step knows its tokens and the entries they complete, and when it is over."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.errors import CacheError, NotOwner
from tests.cache.caches import admit, bookkeeping

SHARINGS = st.sampled_from(["model", "type", "layer"])


def step(manager: KVCacheManager, slots: list[int], before: list[int], after: list[int]) -> Step:
    prepare_forward(manager, slots, before, after)
    return Step.of(manager, slots, before, after)


@given(
    st.lists(st.tuples(st.integers(0, 600), st.integers(1, 300)), min_size=1, max_size=3),
    SHARINGS,
    st.sampled_from([128, 256, 384]),
)
def test_tokens_and_completed_entries_are_those_counted_one_by_one(
    spans: list[tuple[int, int]], sharing: str, block_tokens: int
) -> None:
    manager = bookkeeping(sharing=sharing, block_tokens=block_tokens)
    slots = admit(manager, 3)[::-1][: len(spans)]
    before = [start for start, _ in spans]
    after = [start + count for start, count in spans]
    batch = step(manager, slots, before, after)
    tokens = [
        (b, slots[b], position)
        for b in range(len(slots))
        for position in range(before[b], after[b])
    ]
    assert batch.num_tokens == len(tokens)
    assert batch.num_requests == len(slots)
    assert batch.max_request_tokens == max(count for _, count in spans)
    assert batch.request_ids.tolist() == [b for b, _, _ in tokens]
    assert batch.token_slots.tolist() == [slot for _, slot, _ in tokens]
    assert batch.positions.tolist() == [position for _, _, position in tokens]
    assert batch.tokens_after.tolist() == after
    for table in manager.tables:
        for layer in table.group.layers:
            ratio = 4 if layer in (2, 4) else 128
            lane, per_block = table.group.lane_of(layer), block_tokens // ratio
            done = [(slot, p) for _, slot, p in tokens if (p + 1) % ratio == 0]
            entries = [
                int(table.blocks[lane, slot, p // ratio // per_block]) * per_block
                + p // ratio % per_block
                for slot, p in done
            ]
            found = batch.completed[table, lane, ratio, per_block]
            assert len(found.entries) == len(done)
            assert list(zip(found.slots.tolist(), found.positions.tolist(), strict=True)) == done
            assert found.entries.tolist() == entries
            assert batch.lengths[ratio].tolist() == [count // ratio for count in after]


def test_a_step_stays_what_it_is_when_the_caller_moves_on() -> None:
    manager = bookkeeping()
    slots, before, after = (np.array(x) for x in (admit(manager, 2), [0, 0], [5, 9]))
    prepare_forward(manager, slots, before, after)
    batch = Step.of(manager, slots, before, after)
    for array in (slots, before, after):
        array[:] = 77
    assert batch.request_slots.tolist() == [0, 1]
    assert batch.tokens_after.tolist() == [5, 9]
    assert batch.lengths[4].tolist() == [1, 2]
    batch.check_current()


@pytest.mark.parametrize(
    ("before", "after"), [([0], [9]), ([10], [10]), ([11], [10]), ([0], [11])]
)
def test_a_step_that_was_not_prepared_or_gains_nothing_is_refused(
    before: list[int], after: list[int]
) -> None:
    manager = bookkeeping()
    prepare_forward(manager, admit(manager, 1), [0], [10])
    with pytest.raises(CacheError, match="at least one prepared token of every request"):
        Step.of(manager, [0], before, after)


@pytest.mark.parametrize("slots", [[0, 0], [0, 2], [0, -1], [0, -4], [0, 99]])
def test_a_step_of_slots_without_requests_or_named_twice_is_refused(slots: list[int]) -> None:
    manager = bookkeeping()
    prepare_forward(manager, admit(manager, 2), [0, 0], [4, 4])
    with pytest.raises(NotOwner):
        Step.of(manager, slots, [0, 0], [4, 4])


def test_a_step_is_over_when_its_blocks_went_back_although_its_request_has_as_many_again() -> None:
    manager = bookkeeping()
    first, second = admit(manager, 2)
    batch = step(manager, [first], [0], [128])
    prepare_forward(manager, [first], [128], [0])
    prepare_forward(manager, [second], [0], [128])  # takes the block
    prepare_forward(manager, [first], [0], [128])
    with pytest.raises(NotOwner, match="make a new step"):
        batch.check_current()


def test_a_room_holds_the_numbers_of_a_step_and_nothing_else() -> None:
    manager = bookkeeping()
    room = Step.room(manager.entry_groups, 3, 2, torch.device("cpu"))
    room.fill(step(manager, admit(manager, 2), [0, 3], [1, 5]))
    assert room.request_slots.tolist() == [0, 1, -1]
    assert room.token_slots.tolist() == [0, 1, 1, -1, -1, -1]
    assert room.positions.tolist()[:3] == [0, 3, 4]
    assert room.lengths[4].tolist()[:2] == [0, 1]
    assert room.seen[1].tolist()[:3] == [1, 4, 5]
    first = room.first(1)
    assert first.request_slots.data_ptr() == room.request_slots.data_ptr()
    assert (first.num_requests, first.num_tokens) == (1, 2)
    room.fill(None)
    assert room.token_slots.tolist() == [-1] * 6
