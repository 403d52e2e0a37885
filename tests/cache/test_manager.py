"""Slots and blocks have owners; a step has its blocks or changes nothing."""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.model.plan import StateFormat
from tests.cache.caches import admit, bookkeeping, small_plan
from tests.examples import examples


class NoTorch(TorchFunctionMode):
    """Fails at any use of torch."""

    def __torch_function__(self, func: Callable[..., Any], *args: object, **_: object) -> NoReturn:
        raise AssertionError(f"{func} was called")


# ---- preparing a step ---------------------------------------------------------------------------


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


CONTEXT, SLOTS = 1024, 3


Move = tuple[str, int, int]
kinds, numbers = st.sampled_from(("to", "release")), st.integers(0, SLOTS - 1)
moves = st.lists(st.tuples(kinds, numbers, st.integers(0, CONTEXT)), max_size=12)


@examples(60)
@given(moves, st.sampled_from(("model", "type", "layer")))
def test_the_device_holds_the_hosts_blocks_after_any_moves(
    schedule: list[Move], sharing: str
) -> None:
    plan = small_plan(layers=(2, 3), sharing=sharing, max_context_tokens=CONTEXT, num_slots=SLOTS)
    manager, running = KVCacheManager(plan, copies_tables=True), set[int]()
    assert manager.device_tables is not None
    for kind, number, tokens in schedule:
        if kind == "to":
            if number not in running:
                running.add(manager.admit_request())
            slot = sorted(running)[number % len(running)]
            prepare_forward(manager, [slot], [0], [tokens])
            manager.device_tables.publish()
        elif running:
            slot = running.pop()
            manager.release_request(slot, manager.generation(slot))
    manager.device_tables.publish()
    manager.device_tables.check()
    for table in manager.tables:
        cells = manager.device_tables.cells[table]
        assert np.array_equal(cells.numpy(), table.blocks)
