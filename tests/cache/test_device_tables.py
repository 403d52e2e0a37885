"""Block tables on a device stay the host's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache import manager as staging
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import CacheError
from tests.cache.caches import small_plan
from tests.examples import examples

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


def test_without_device_tables_a_view_is_the_hosts_memory() -> None:
    manager = KVCacheManager(small_plan(layers=(2, 3)))
    (table,) = manager.tables
    assert manager.device_tables is None
    assert manager.view(table, 2).data_ptr() == table.blocks.ctypes.data
    assert table.changes is None


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
