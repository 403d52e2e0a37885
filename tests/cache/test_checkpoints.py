"""A checkpoint brings back window and state, bit for bit, in any slot."""

import pytest
import torch

from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import CacheError, NotOwner, OutOfBlocks
from dsv4kv.model.config import AttentionType
from dsv4kv.model.plan import StateFormat, at_whole_block
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
    """What a slot needs besides its blocks: windows, and the states of overlapping groups."""
    found = []
    for attn, states in manager.states.items():
        found += [ring.pages[slot].clone() for ring in states.windows]
        if attn is AttentionType.CSA:
            found += [tensor[:, slot].clone() for tensor in states.states()]
    return found


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


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


def test_the_state_of_groups_that_end_there_is_not_copied() -> None:
    manager = build()
    pool, hca = CheckpointPool(manager, 1), manager.states[AttentionType.HCA]
    (state,) = hca.states()
    checkpoint, before = pool.save(0), state[:, 1].clone()
    pool.restore(checkpoint, 1)
    assert torch.equal(state[:, 1], before)


@pytest.mark.parametrize("tokens", [1, 127, 129])
def test_a_checkpoint_inside_a_group_is_refused(tokens: int) -> None:
    manager = build()
    pool = CheckpointPool(manager, 1)
    manager.tokens[0] = tokens
    with pytest.raises(CacheError, match=rf"has {tokens} tokens: .* multiples of 128"):
        pool.save(0)
    assert pool.num_free == 1


def test_memory_is_that_of_windows_and_overlapping_states() -> None:
    manager = build()
    size = sum(at_whole_block(schema).slot_bytes for schema in manager.plan.schemas)
    hca = [s for s in manager.plan.schemas if s.layer.attn is AttentionType.HCA]
    slot_bytes = sum(schema.slot_bytes for schema in manager.plan.schemas)
    assert size == slot_bytes - sum(schema.state_bytes for schema in hca)
    assert sum(mine.nbytes for _, mine in CheckpointPool(manager, 5)._pairs()) == 5 * size
