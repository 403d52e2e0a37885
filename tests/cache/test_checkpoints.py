"""A checkpoint brings back window and state, bit for bit, in any slot."""

import pytest
import torch

from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import NotOwner, OutOfBlocks
from dsv4kv.model.schema import StateFormat
from tests.cache.caches import small_plan


def build(state: StateFormat = "ring") -> KVCacheManager:
    manager = KVCacheManager(small_plan(layers=(0, 2, 3, 4), num_slots=3, state=state))
    for seed, states in enumerate(manager.states.values()):
        generator = torch.Generator().manual_seed(seed)
        for ring in states.windows:
            ring.pages.random_(0, 256, generator=generator)
        for tensor in states.states():
            tensor.normal_(generator=generator)
    return manager


def content(manager: KVCacheManager, slot: int) -> list[torch.Tensor]:
    """Everything a slot holds besides its blocks."""
    found = []
    for states in manager.states.values():
        found += [ring.pages[slot].clone() for ring in states.windows]
        found += [tensor[:, slot].clone() for tensor in states.states()]
    return found


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("state", ["ring", "online"])
def test_a_slot_is_as_it_was_when_the_checkpoint_was_saved(state: StateFormat) -> None:
    manager = build(state)
    pool, before = CheckpointPool(manager, 2), content(manager, 1)
    others = content(manager, 0)
    checkpoint = pool.save(1)
    for states in manager.states.values():
        states.reset_slot(1)
        for ring in states.windows:
            ring.pages[1] = 0
    assert not equal(content(manager, 1), before)
    pool.restore(checkpoint, 1)
    assert equal(content(manager, 1), before)
    assert equal(content(manager, 0), others)


def test_a_checkpoint_goes_into_any_slot_and_stays() -> None:
    manager = build()
    pool, before = CheckpointPool(manager, 2), content(manager, 0)
    checkpoint = pool.save(0)
    pool.save(1)
    for slot in (2, 1):
        pool.restore(checkpoint, slot)
        assert equal(content(manager, slot), before)


def test_as_many_are_kept_as_there_is_room_for() -> None:
    pool = CheckpointPool(build(), 2)
    first = pool.save(0)
    pool.save(1)
    assert pool.num_free == 0
    with pytest.raises(OutOfBlocks, match="checkpoints"):
        pool.save(2)
    pool.release(first)
    assert pool.save(2) == first


def test_a_released_checkpoint_is_refused() -> None:
    manager = build()
    pool = CheckpointPool(manager, 2)
    checkpoint = pool.save(0)
    pool.release(checkpoint)
    before = content(manager, 1)
    with pytest.raises(NotOwner):
        pool.restore(checkpoint, 1)
    with pytest.raises(NotOwner):
        pool.release(checkpoint)
    assert equal(content(manager, 1), before)


def test_memory_is_that_of_as_many_slots() -> None:
    manager = build()
    slot_bytes = sum(schema.slot_bytes for schema in manager.plan.schemas)
    assert CheckpointPool(manager, 5).memory_bytes() == 5 * slot_bytes


def test_without_data_only_numbers_are_kept() -> None:
    pool = CheckpointPool(KVCacheManager(small_plan(layers=(2, 3)), data=False), 2)
    assert pool.memory_bytes() == 0
    pool.restore(pool.save(0), 1)
