"""Block tables on the device hold what those on the host hold, id for id."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.errors import CacheError, ConfigError, ContextOverflow, NotOwner, OutOfBlocks
from dsv4kv.model.schema import Sharing, TableGroup
from dsv4kv.ops.launches import prepare
from tests.cache.caches import admit, bookkeeping
from tests.examples import examples
from tests.kernels.launches import each_order, run_all

SLOTS, CONTEXT = 6, 1000
SHARINGS: list[Sharing] = ["model", "type", "layer"]
each_sharing = pytest.mark.parametrize("sharing", SHARINGS)
REFUSALS: dict[type[CacheError], prepare.Refusal] = {
    OutOfBlocks: prepare.Refusal.OUT_OF_BLOCKS,
    ContextOverflow: prepare.Refusal.CONTEXT_OVERFLOW,
    NotOwner: prepare.Refusal.NOT_OWNER,
}
FAR = 2**60

some = examples(20)


@dataclass
class Pair:
    """The same cache's tables on the host and on the device."""

    host: KVCacheManager
    device: list[prepare.DeviceTable]
    reverse: bool = False

    @classmethod
    def of(cls, sharing: Sharing, *, reverse: bool = False, **sizes: Any) -> "Pair":
        host = bookkeeping(sharing=sharing, **({"num_slots": SLOTS, "num_blocks": 16} | sizes))
        admit(host, SLOTS)
        limits = host.plan.num_slots, host.plan.max_context_tokens
        device = [
            prepare.DeviceTable.allocate(
                table.group, table.allocator.num_blocks, *limits, torch.device("cpu")
            )
            for table in host.tables
        ]
        return cls(host, device, reverse)

    def prepare(self, step: dict[int, int]) -> prepare.Refusal:
        """Prepare tokens by slot on both sides; what the host refused, the device's bits."""
        slots, after = list(step), list(step.values())
        self.prepare_device(slots, after)
        try:
            prepare_forward(self.host, slots, self.host.tokens[slots], after)
        except (OutOfBlocks, ContextOverflow, NotOwner) as error:
            return REFUSALS[type(error)]
        return prepare.Refusal(0)

    def prepare_device(self, slots: list[int], after: list[int]) -> None:
        numbers = torch.tensor(slots, dtype=torch.int64), torch.tensor(after, dtype=torch.int64)
        run_all(prepare.plan_prepare(self.device, *numbers), reverse=self.reverse)

    def release(self, slots: list[int]) -> None:
        run_all(prepare.plan_release(self.device, torch.tensor(slots)), reverse=self.reverse)
        for slot in slots:
            for table in self.host.tables:
                table.clear(slot)
            self.host.tokens[slot] = 0

    def check(self) -> None:
        for host, device in zip(self.host.tables, self.device, strict=True):
            count = host.allocator.num_free
            free = np.tile(host.allocator._free, (host.group.lanes, 1))
            assert np.array_equal(device.cells.numpy(), host.blocks)
            assert np.array_equal(device.held.numpy(), host.held)
            assert int(device.num_free) == count
            assert np.array_equal(device.free[:, :count].numpy(), free[:, :count])
            check_blocks(device)


def check_blocks(table: prepare.DeviceTable) -> None:
    """Every block of every lane is free or in one cell: none lost, none doubled."""
    count = int(table.num_free)
    for cells, free in zip(table.cells, table.free, strict=True):
        ids = torch.cat([cells[cells != prepare.NO_BLOCK], free[:count]])
        assert sorted(ids.tolist()) == list(range(table.free.shape[1]))


def snapshot(tables: Sequence[prepare.DeviceTable]) -> list[list[Any]]:
    """All that the tables know, but for the status."""
    return [
        [t.tolist() for t in (table.cells, table.held, table.free, table.num_free)]
        for table in tables
    ]


def status(pair: Pair) -> list[list[int]]:
    return [table.status.tolist() for table in pair.device]


steps = st.dictionaries(st.integers(0, SLOTS - 1), st.integers(0, CONTEXT), max_size=SLOTS)


@each_order
@each_sharing
@given(schedule=st.lists(st.tuples(steps, st.booleans()), max_size=6))
@some
def test_any_schedule_gives_the_tables_of_the_host(
    sharing: Sharing, reverse: bool, schedule: list[tuple[dict[int, int], bool]]
) -> None:
    """Growth, rollback, release, and steps that do not fit."""
    pair = Pair.of(sharing, reverse=reverse)
    for step, finished in schedule:
        refusal = pair.prepare(step)
        assert {last for _, last in status(pair)} == {refusal}
        pair.check()
        if finished and step:
            pair.release([next(iter(step))])
            pair.check()


@each_sharing
def test_shortage_in_one_table_changes_nothing_in_any(sharing: Sharing) -> None:
    pair = Pair.of(sharing)
    assert pair.prepare({0: 900}) == prepare.Refusal(0)
    before = snapshot(pair.device)
    assert pair.prepare({0: 901, 1: 700, 2: 300}) == prepare.Refusal.OUT_OF_BLOCKS
    assert snapshot(pair.device) == before
    assert status(pair) == [[1, 1]] * len(pair.device)
    assert pair.prepare({0: 40, 1: 40}) == prepare.Refusal(0)
    assert status(pair) == [[1, 0]] * len(pair.device)  # remembered until the host clears it
    pair.check()


@pytest.mark.parametrize(
    ("slots", "after", "refusal"),
    [
        ([0, 1, 0], [5, 5, 5], prepare.Refusal.NOT_OWNER),
        ([0, SLOTS], [5, 5], prepare.Refusal.NOT_OWNER),
        ([0, -2], [5, 5], prepare.Refusal.NOT_OWNER),
        ([FAR, 1], [5, 5], prepare.Refusal.NOT_OWNER),
        ([0, 1], [CONTEXT + 1, 5], prepare.Refusal.CONTEXT_OVERFLOW),
        ([0, 1], [5, -1], prepare.Refusal.CONTEXT_OVERFLOW),
        ([0, 1], [FAR, -FAR], prepare.Refusal.CONTEXT_OVERFLOW),
        ([0, 0], [-1, 5], prepare.Refusal.NOT_OWNER | prepare.Refusal.CONTEXT_OVERFLOW),
    ],
)
@each_sharing
def test_a_step_that_cannot_be_changes_nothing(
    sharing: Sharing, slots: list[int], after: list[int], refusal: prepare.Refusal
) -> None:
    pair = Pair.of(sharing)
    pair.prepare({0: 300, 1: 700})
    before = snapshot(pair.device)
    pair.prepare_device(slots, after)
    assert snapshot(pair.device) == before
    assert status(pair) == [[refusal, refusal]] * len(pair.device)


def test_padding_is_no_request() -> None:
    pair = Pair.of("model")
    pair.prepare_device([-1, 2, -1, 0], [FAR, 300, -5, 40])
    prepare_forward(pair.host, [2, 0], [0, 0], [300, 40])
    pair.check()


@pytest.mark.parametrize("requests", [129, 1024])
def test_as_many_requests_as_a_launch_has_threads(requests: int) -> None:
    pair = Pair.of("model", num_slots=requests, num_blocks=None)
    admit(pair.host, requests - SLOTS)
    order = torch.randperm(requests, generator=torch.Generator().manual_seed(1)).tolist()
    for factor in (1, 3, 2):
        pair.prepare({slot: factor * (slot % 333) for slot in order})
        pair.check()


def test_more_requests_than_a_launch_has_threads_are_refused() -> None:
    pair = Pair.of("model")
    with pytest.raises(ConfigError, match="at most 1024"):
        prepare.plan_prepare(pair.device, torch.zeros(1025).long(), torch.zeros(1025).long())


def _ratios(sharing: Sharing, group: TableGroup) -> list[tuple[int, int]]:
    """Ratios of a group's layers, and their entries per block."""
    return [(4, 32), (128, 1)] if sharing == "model" else [(group.ratio, group.entries_per_block)]


@each_order
@each_sharing
def test_entries_of_a_step_are_those_of_the_host(sharing: Sharing, reverse: bool) -> None:
    pair = Pair.of(sharing, reverse=reverse)
    slots, before, after = [4, 0, 2], [0, 120, 126], [260, 129, 127]
    for done in (before, after):
        pair.prepare(dict(zip(slots, done, strict=True)))
    batch = Step.of(pair.host, slots, before, after)
    for host, device in zip(pair.host.tables, pair.device, strict=True):
        for ratio, per_block in _ratios(sharing, device.group):
            room = len(batch.positions) + 3  # as where a graph has room for more tokens
            entries = torch.full((device.group.lanes, room), 7)
            numbers = batch.token_slots, batch.positions
            launch = prepare.plan_completed(device.cells, ratio, per_block, *numbers, entries)
            run_all((launch,), reverse=reverse)
            assert bool((entries[:, len(batch.positions) :] == 7).all())
            done_here = (batch.positions + 1) % ratio == 0
            for lane, found in enumerate(entries[:, : len(batch.positions)]):
                expected = batch.completed[host, lane, ratio, per_block]
                assert torch.equal(found[done_here], expected.entries)
                assert bool((found[~done_here] == -1).all())


@pytest.mark.parametrize(
    ("slot", "position"),
    [(-1, 3), (SLOTS, 3), (FAR, 3), (0, -1), (0, -FAR - 1), (0, 2**63 - 1), (1, 3), (0, 131)],
)
def test_a_token_without_a_block_completes_nothing(slot: int, position: int) -> None:
    """Slot 1 holds nothing, and slot 0 one block less than its position needs."""
    pair = Pair.of("model")
    table = pair.device[0]
    pair.prepare({0: 20})
    entries = torch.tensor([[7]])
    numbers = torch.tensor([slot]), torch.tensor([position])
    run_all((prepare.plan_completed(table.cells, 4, 32, *numbers, entries),))
    assert entries.item() == -1
