"""Slots and blocks have owners, and memory stays where it is."""

from collections.abc import Callable

import numpy as np
import pytest

from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import NotOwner, OutOfBlocks, OutOfSlots
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import Sharing
from tests.cache.caches import admit, allocators, bookkeeping, small_plan, snapshot

BY_SHARING = pytest.mark.parametrize("sharing", ["model", "type", "layer"])


def refuses(manager: KVCacheManager, call: Callable[[], object], match: str) -> None:
    before = snapshot(manager)
    with pytest.raises(NotOwner, match=match):
        call()
    assert snapshot(manager) == before


def test_lower_slots_are_given_first() -> None:
    manager = bookkeeping()
    assert admit(manager, 3) == [0, 1, 2]
    assert manager.num_free_slots == 0


def test_more_requests_than_slots_are_refused_with_what_to_raise() -> None:
    manager = bookkeeping()
    admit(manager, 3)
    before = snapshot(manager)
    with pytest.raises(OutOfSlots, match=r"all 3 slots are taken: raise cache\.num_slots"):
        manager.admit_request()
    assert snapshot(manager) == before


@BY_SHARING
def test_a_released_request_leaves_nothing_behind(sharing: Sharing) -> None:
    manager = bookkeeping(sharing=sharing)
    slots = admit(manager, 2)
    prepare_forward(manager, slots, [0, 0], [1000, 300])
    kept = [table.blocks[:, slots[1]].tolist() for table in manager.tables]
    manager.release_request(slots[0], manager.generation(slots[0]))
    assert manager.tokens[slots[0]] == 0
    for table, row in zip(manager.tables, kept, strict=True):
        assert table.held[slots[0]] == 0
        assert (table.blocks[:, slots[0]] == -1).all()
        assert table.blocks[:, slots[1]].tolist() == row
        assert table.allocator.num_held == table.held.sum()
    manager.release_request(slots[1], manager.generation(slots[1]))
    assert manager.num_held_blocks == 0
    assert all(a.num_free == a.num_blocks for a in allocators(manager))


def test_a_new_request_in_an_old_slot_starts_at_nothing() -> None:
    manager = bookkeeping(num_slots=1)
    prepare_forward(manager, admit(manager, 1), [0], [999])
    manager.release_request(0, manager.generation(0))
    assert manager.admit_request() == 0
    assert manager.tokens[0] == 0
    assert manager.num_held_blocks == 0


def test_a_request_released_twice_is_refused() -> None:
    manager = bookkeeping()
    slots = admit(manager, 2)
    prepare_forward(manager, slots, [0, 0], [300, 300])
    manager.release_request(slots[0], manager.generation(slots[0]))
    refuses(
        manager,
        lambda: manager.release_request(slots[0], manager.generation(slots[0])),
        "slots 0: not all are held",
    )


@pytest.mark.parametrize("generation", [0, 1])
@pytest.mark.parametrize("slot", [-1, -2, -4, -6, 3, 99])
def test_a_slot_out_of_range_is_refused(slot: int, generation: int) -> None:
    manager = bookkeeping()
    admit(manager, 3)
    refuses(manager, lambda: manager.release_request(slot, generation), f"slots {slot}: ")


def test_an_old_owner_cannot_release_the_new_one() -> None:
    manager = bookkeeping(num_slots=1)
    (slot,) = admit(manager, 1)
    old = manager.generation(slot)
    manager.release_request(slot, old)
    admit(manager, 1)
    prepare_forward(manager, [slot], [0], [500])
    assert manager.generation(slot) > old
    refuses(manager, lambda: manager.release_request(slot, old), "not all are still held")
    manager.release_request(slot, manager.generation(slot))
    assert manager.num_free_slots == 1


def test_generations_of_many_slots_are_those_of_each() -> None:
    manager = bookkeeping()
    slots = np.array(admit(manager, 3)[::-1])
    assert manager.generations(slots).tolist() == [manager.generation(s) for s in slots.tolist()]


def test_held_blocks_are_counted_in_every_lane() -> None:
    for sharing, blocks in (("model", 3), ("type", 3 + 2), ("layer", 2 * 3 + 2 * 2)):
        manager = bookkeeping(sharing=sharing)
        prepare_forward(manager, admit(manager, 1), [0], [300])
        assert manager.num_held_blocks == blocks


@BY_SHARING
def test_a_block_outside_any_request_is_taken_and_given_back(sharing: Sharing) -> None:
    manager = bookkeeping(sharing=sharing, num_blocks=2)
    for group, table in enumerate(manager.tables):
        block = manager.allocate_block(group)
        assert block.size == table.group.lanes
        assert table.allocator.num_free == 1
        manager.allocate_block(group)
        with pytest.raises(OutOfBlocks):
            manager.allocate_block(group)
        table.allocator.release(block)
        assert table.allocator.num_free == 1


def test_a_block_taken_outside_is_no_requests() -> None:
    manager = bookkeeping(num_blocks=3)
    block = manager.allocate_block()
    prepare_forward(manager, admit(manager, 1), [0], [256])
    assert int(block[0]) not in manager.tables[0].blocks[0, 0, :2].tolist()
    assert manager.tables[0].allocator.num_free == 0


def test_memory_never_moves() -> None:
    manager = KVCacheManager(small_plan(sharing="layer"))

    def addresses() -> list[int]:
        pools = [pool.main.pages for pool in manager.pools.values()]
        rings = [ring.pages for states in manager.states.values() for ring in states.windows]
        states = [tensor for pool in manager.states.values() for tensor in pool.states()]
        tables = [table.view(layer) for table in manager.tables for layer in table.group.layers]
        return [tensor.data_ptr() for tensor in pools + rings + states + tables]

    before = addresses()
    slots = admit(manager, 3)
    prepare_forward(manager, slots, [0, 0, 0], [1000, 256, 3])
    prepare_forward(manager, slots, [1000, 256, 3], [10, 900, 3])
    manager.release_request(slots[1], manager.generation(slots[1]))
    admit(manager, 1)
    assert addresses() == before


def test_a_table_view_shows_what_is_prepared_later() -> None:
    manager = bookkeeping()
    view = manager.tables[0].view(2)
    prepare_forward(manager, admit(manager, 1), [0], [300])
    assert view[0].tolist() == manager.tables[0].blocks[0, 0].tolist()
    assert view[0, :3].min() >= 0


def test_of_a_type_s_layers_those_that_pool_have_a_state_and_all_have_a_window() -> None:
    plan = small_plan(load_model("v4.1-flash"))
    manager = KVCacheManager(plan)
    states = manager.states[AttentionType.CSA]
    assert len(states.windows) == 38
    assert states.indexer_state is None
    assert states.state is not None
    assert states.state.shape == (3, plan.num_slots, 2, 2, 512)  # layers 2, 8 and 14
    assert sorted(manager.pools) == [2, 8, 14, 20]
    assert manager.memory_bytes() == plan.total_bytes


def test_a_slot_holds_blocks_it_shares_and_then_its_own() -> None:
    manager = KVCacheManager(small_plan(layers=(2, 3)), data=False)
    (table,), (first, second) = manager.tables, admit(manager, 2)
    prepare_forward(manager, [first], [0], [300])
    shared = table.blocks[0, first, :2].astype(np.int64)
    table.allocator.retain(shared)
    table.adopt(second, shared)
    table.adopt(second, table.allocator.acquire(1))
    assert table.blocks[0, second, :2].tolist() == shared.tolist()
    assert table.blocks[0, second, 2] not in table.blocks[0, first]
    assert table.held[second] == 3
    manager.release_request(first, manager.generation(first))
    assert table.allocator.refs(shared).tolist() == [1, 1]
    manager.release_request(second, manager.generation(second))
    assert table.allocator.num_held == 0
