"""Slots and blocks have owners; a step has its blocks or changes nothing."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
import torch
from torch.overrides import TorchFunctionMode

from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import CacheError, ContextOverflow, NotOwner, OutOfSlots
from dsv4kv.model.config import AttentionType
from dsv4kv.model.plan import StateFormat
from dsv4kv.model.presets import load_model
from tests.cache.caches import admit, bookkeeping, small_plan, snapshot


class NoTorch(TorchFunctionMode):
    """Fails at any use of torch."""

    def __torch_function__(self, func: Callable[..., Any], *args: object, **_: object) -> NoReturn:
        raise AssertionError(f"{func} was called")


def refuses(
    manager: KVCacheManager, error: type[CacheError], match: str, *step: Any, call: Any = None
) -> None:
    """A step, or another call, is refused and nothing at all has changed."""
    before = snapshot(manager)
    with pytest.raises(error, match=match):
        call() if call else prepare_forward(manager, *step)
    assert snapshot(manager) == before


# ---- preparing a step ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "before", "after"),
    [([0, 1], [0], [1]), ([0], [0, 0], [1]), ([0], [0], [1, 1]), ([[0]], [[0]], [[1]]), (0, 0, 1)],
)
def test_lists_of_different_lengths_are_refused(
    slots: object, before: object, after: object
) -> None:
    manager = bookkeeping()
    admit(manager, 2)
    refuses(manager, CacheError, "must be three lists of one length", slots, before, after)


@pytest.mark.parametrize(("before", "after"), [(0, -1), (-1, 5), (-(2**62), -1)])
def test_negative_tokens_are_refused(before: int, after: int) -> None:
    manager = bookkeeping()
    slots = admit(manager, 2)
    refuses(manager, CacheError, "fewer than 0 tokens", slots, [0, before], [100, after])


def test_layers_without_compressed_kv_are_prepared_without_tables() -> None:
    manager = bookkeeping(layers=[0, 1])
    (slot,) = admit(manager, 1)
    prepare_forward(manager, [slot], [0], [1000])
    assert manager.tokens[slot] == 1000
    refuses(manager, ContextOverflow, "a table row holds 1000", [slot], [1000], [1001])


def test_no_step_touches_a_tensor() -> None:
    """Host arrays are the truth: nothing waits for a device."""
    manager = KVCacheManager(small_plan())
    slots = admit(manager, 2)
    with NoTorch():
        prepare_forward(manager, slots, [0, 0], [700, 128])
        prepare_forward(manager, slots, [700, 128], [500, 129])
        manager.release_request(slots[0], manager.generation(slots[0]))
    with pytest.raises(AssertionError, match="was called"), NoTorch():
        torch.zeros(1).item()


# ---- slots, blocks and memory -------------------------------------------------------------------


def test_more_requests_than_slots_are_refused_with_what_to_raise() -> None:
    manager = bookkeeping()
    admit(manager, 3)
    sentence = r"all 3 slots are taken: raise cache\.num_slots"
    refuses(manager, OutOfSlots, sentence, call=manager.admit_request)


@pytest.mark.parametrize("generation", [0, 1])
@pytest.mark.parametrize("slot", [-1, -2, -4, -6, 3, 99])
def test_a_slot_out_of_range_is_refused(slot: int, generation: int) -> None:
    manager = bookkeeping()
    admit(manager, 3)
    release = partial(manager.release_request, slot, generation)
    refuses(manager, NotOwner, f"slots {slot}: ", call=release)


def test_held_blocks_are_counted_in_every_lane() -> None:
    for sharing, blocks in (("model", 3), ("type", 3 + 2), ("layer", 2 * 3 + 2 * 2)):
        manager = bookkeeping(sharing=sharing)
        prepare_forward(manager, admit(manager, 1), [0], [300])
        assert manager.num_held_blocks == blocks


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


def test_of_a_type_s_layers_those_that_pool_have_a_state_and_all_have_a_window() -> None:
    plan = small_plan(load_model("v4.1-flash"))
    manager = KVCacheManager(plan)
    states = manager.states[AttentionType.CSA]
    assert len(states.windows) == 38
    assert states.indexer_state is None
    assert states.state is not None
    assert states.state.shape == (3, plan.num_slots, 2, 2, 512)  # layers 2, 8 and 14
    assert sorted(manager.pools) == [2, 8, 14, 20]
    assert sum(manager.memory_by_pool().values()) == plan.total_bytes


# ---- pools and states ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ring", "online"])
def test_admitting_forgets_a_slot_in_all_layers_and_no_other(state: StateFormat) -> None:
    manager = KVCacheManager(small_plan(state=state))
    tensors = [tensor for states in manager.states.values() for tensor in states.states()]
    for fresh in (True, False):
        slot = slice(None) if fresh else admit(manager, 1)[0]
        for tensor in tensors:
            scores = 1 if tensor.dim() == 5 else 0  # of a ring; maxima of an online state
            found = tensor[:, slot].flatten(0, -len(tensor.shape[2:]) - 1)
            assert bool((found[:, scores] == -math.inf).all())
            assert not found[:, [i for i in range(found.shape[1]) if i != scores]].any()
            assert fresh or bool((tensor[:, 1:] == 7.0).all())
            tensor.fill_(7.0)


def test_layers_of_a_stage_keep_their_numbers() -> None:
    manager = KVCacheManager(small_plan(layers=[23, 24], stage=1, stages=2))
    assert set(manager.pools) == {23, 24}
