"""Slots and blocks have owners; a step has its blocks or changes nothing."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from dsv4kv.cache import manager as staging
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.errors import CacheError
from dsv4kv.model.config import AttentionType
from dsv4kv.model.plan import StateFormat
from dsv4kv.model.presets import load_model
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


def test_memory_never_moves() -> None:
    manager = KVCacheManager(small_plan(sharing="layer"))

    def addresses() -> list[int]:
        pools = [pool.main.pages for pool in manager.pools.values()]
        rings = [ring.pages for states in manager.states.values() for ring in states.windows]
        states = [tensor for pool in manager.states.values() for tensor in pool.states()]
        tables = [
            manager.view(table, layer) for table in manager.tables for layer in table.group.layers
        ]
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


def build(sharing: Any = "model", **options: Any) -> KVCacheManager:
    sizes = {"max_context_tokens": CONTEXT, "num_slots": SLOTS}
    plan = small_plan(layers=(2, 3), sharing=sharing, **sizes | options)
    return KVCacheManager(plan, copies_tables=True)


def follow(manager: KVCacheManager, slots: list[int], tokens: list[int]) -> None:
    """Prepare on the host, and what a step does for the device's tables."""
    tables = manager.device_tables
    assert tables is not None
    prepare_forward(manager, slots, np.zeros(len(slots)), tokens)
    tables.publish()


Move = tuple[str, int, int]
kinds, numbers = st.sampled_from(("to", "release")), st.integers(0, SLOTS - 1)
moves = st.lists(st.tuples(kinds, numbers, st.integers(0, CONTEXT)), max_size=12)


@examples(60)
@given(moves, st.sampled_from(("model", "type", "layer")))
def test_the_device_holds_the_hosts_blocks_after_any_moves(
    schedule: list[Move], sharing: str
) -> None:
    manager, running = build(sharing), set[int]()
    for kind, number, tokens in schedule:
        if kind == "to":
            if number not in running:
                running.add(manager.admit_request())
            slot = sorted(running)[number % len(running)]
            follow(manager, [slot], [tokens])
        elif running:
            slot = running.pop()
            manager.release_request(slot, manager.generation(slot))
    assert manager.device_tables is not None
    manager.device_tables.publish()
    manager.device_tables.check()
    for table in manager.tables:
        cells = manager.device_tables.cells[table]
        assert np.array_equal(cells.numpy(), table.blocks)


@contextmanager
def counted_transfers() -> Iterator[list[int]]:
    """Numbers of every transfer to the device."""
    sizes: list[int] = []
    right = staging.stage

    def stage(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
        sizes.append(numbers.numel())
        return right(numbers, device)

    with patch("dsv4kv.cache.manager.stage", stage):
        yield sizes


def test_only_cells_that_changed_are_brought_over() -> None:
    manager = build()
    slots = [manager.admit_request() for _ in range(2)]
    with counted_transfers() as sizes:
        follow(manager, slots, [300, 128])  # three blocks and one
        follow(manager, slots, [301, 129])  # none
        follow(manager, slots, [384, 132])  # a second one for the second request
        manager.release_request(slots[0], manager.generation(slots[0]))
        follow(manager, slots[1:], [132])
    assert sizes == [2 * 4, 2 * 1, 2 * 3]  # where and what


def test_a_cell_that_differs_is_named() -> None:
    manager = build()
    slot = manager.admit_request()
    follow(manager, [slot], [300])
    tables = manager.device_tables
    assert tables is not None
    tables.cells[manager.tables[0]][0, slot, 1] = 77
    with pytest.raises(
        CacheError, match=r"^1 cells of table model .* column 1: 77 instead of 1\.$"
    ):
        tables.check()
