"""A step's numbers at fixed places, and on a device: the step's own, and nothing for the rest."""

from collections.abc import Callable

import pytest
import torch

from dsv4kv.cache.device_tables import stage
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.cache.step import StagedStep, StaticStep, StepBatch, StepView
from dsv4kv.errors import NotOwner
from dsv4kv.ops.kernels.prepare import plan_completed
from tests.cache.caches import small_plan
from tests.kernels.shim.twin import run

CPU = torch.device("cpu")
MOST, EACH = 4, 3


@pytest.fixture
def manager() -> KVCacheManager:
    return KVCacheManager(small_plan(layers=(2, 3), num_slots=5), data=False)


def make_batch(manager: KVCacheManager, *after: int) -> StepBatch:
    """A step of new requests that gain one token, the second one two."""
    slots = [manager.admit_request() for _ in after]
    before = [end - (2 if i == 1 else 1) for i, end in enumerate(after)]
    prepare_forward(manager, slots, before, after)
    return StepBatch(manager, slots, before, after)


def make_static(manager: KVCacheManager) -> StaticStep:
    (table,) = manager.tables
    return StaticStep([(table, 0, 4, 32), (table, 0, 128, 1), (table, 0, 4, 32)], MOST, EACH, CPU)


def test_a_view_has_the_steps_numbers_first_and_then_nobody(manager: KVCacheManager) -> None:
    batch, static = make_batch(manager, 128, 40), make_static(manager)
    static.fill(batch)
    view = static.view(3)
    assert (view.num_requests, view.max_request_tokens) == (3, EACH)
    assert view.request_slots.tolist() == [*batch.request_slots.tolist(), -1]
    assert view.tokens_after.tolist() == [128, 40, 0]
    assert view.token_slots.tolist() == [*batch.token_slots.tolist()] + [-1] * 6
    assert view.positions.tolist() == [127, 38, 39] + [0] * 6
    assert view.lengths(4).tolist() == [32, 10, 0]
    assert view.lengths(128).tolist() == [1, 0, 0]


def test_a_smaller_step_leaves_nothing_of_a_larger_one(manager: KVCacheManager) -> None:
    static = make_static(manager)
    large, small = make_batch(manager, 9, 10, 11, 12), make_batch(manager, 7)
    view = static.view(MOST)
    static.fill(large)
    static.fill(small)
    assert view.request_slots.tolist() == [*small.request_slots.tolist(), -1, -1, -1]
    assert view.token_slots.tolist() == [*small.token_slots.tolist()] + [-1] * (MOST * EACH - 1)
    static.clear()
    assert set(view.request_slots.tolist()) == set(view.token_slots.tolist()) == {-1}


def test_views_stay_where_they_are(manager: KVCacheManager) -> None:
    static = make_static(manager)
    before = [tensor.data_ptr() for tensor in tensors_of(static.view(2))]
    static.fill(make_batch(manager, 5, 6, 7))
    assert [tensor.data_ptr() for tensor in tensors_of(static.view(2))] == before


def tensors_of(view: StepView) -> list[torch.Tensor]:
    numbers = [view.request_slots, view.token_slots, view.positions, view.tokens_after]
    return [*numbers, view.lengths(4), view.lengths(128)]


def test_completed_entries_are_worked_out_where_the_numbers_are(manager: KVCacheManager) -> None:
    (table,) = manager.tables
    batch, static = make_batch(manager, 256, 41), make_static(manager)
    static.fill(batch)
    view = static.view(2)
    for (kept, ratio, per_block), entries in static.entries.items():
        assert kept is table
        cells = torch.from_numpy(table.blocks)
        run(plan_completed(cells, ratio, per_block, view.token_slots, view.positions, entries))
    for ratio, per_block in ((4, 32), (128, 1)):
        done, expected = (v.completed(table, 0, ratio, per_block) for v in (view, batch))
        assert len(done) == 2 * EACH
        found = done.entries >= 0
        assert done.entries[found].tolist() == expected.entries.tolist()
        assert done.positions[found].tolist() == expected.positions.tolist()
        assert done.slots[found].tolist() == expected.slots.tolist()


def test_layers_that_write_the_same_entries_share_them(manager: KVCacheManager) -> None:
    assert len(make_static(manager).entries) == 2


def test_prompt_chunks_have_no_fixed_place(manager: KVCacheManager) -> None:
    with pytest.raises(NotImplementedError, match="not captured"):
        make_static(manager).view(1).chunk_start()


def test_a_staged_step_has_the_steps_numbers(manager: KVCacheManager) -> None:
    (table,) = manager.tables
    batch = make_batch(manager, 128, 40)
    staged = StagedStep(batch, CPU)
    for found, expected in zip(tensors_of(staged), tensors_of(batch), strict=True):
        assert torch.equal(found, expected)
        assert found.data_ptr() != expected.data_ptr()
    done, expected_done = (v.completed(table, 0, 4, 32) for v in (staged, batch))
    assert torch.equal(done.entries, expected_done.entries)
    assert torch.equal(done.slots, expected_done.slots)
    assert torch.equal(done.positions, expected_done.positions)
    assert staged.chunk_start() == batch.chunk_start() == (0, 127)
    assert (staged.num_requests, staged.max_request_tokens) == (2, 2)


def test_numbers_are_staged_once(manager: KVCacheManager) -> None:
    staged = StagedStep(make_batch(manager, 5), CPU)
    read: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: staged.positions,
        lambda: staged.lengths(4),
    )
    for numbers in read:
        assert numbers().data_ptr() == numbers().data_ptr()


def test_what_is_staged_stays_what_it_was() -> None:
    numbers = torch.tensor([1, 2, 3])
    staged = stage(numbers, CPU)
    numbers.zero_()
    assert staged.tolist() == [1, 2, 3]


def test_a_staged_step_is_refused_once_a_request_has_left(manager: KVCacheManager) -> None:
    batch = make_batch(manager, 5)
    staged = StagedStep(batch, CPU)
    staged.check_current()
    manager.release_request(0, manager.generation(0))
    with pytest.raises(NotOwner):
        staged.check_current()
