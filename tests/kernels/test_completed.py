"""Entries that a step completes, by the block table on the device."""

import pytest
import torch

from dsv4kv.cache.manager import prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.model.plan import Sharing, TableGroup
from dsv4kv.ops.launches.pages import plan_completed
from tests.cache.caches import admit, bookkeeping
from tests.kernels.launches import each_order
from tests.kernels.shim.twin import run

SLOTS, FAR = 6, 2**60
SHARINGS: list[Sharing] = ["model", "type", "layer"]


def _ratios(sharing: Sharing, group: TableGroup) -> list[tuple[int, int]]:
    """Ratios of a group's layers, and their entries per block."""
    return [(4, 32), (128, 1)] if sharing == "model" else [(group.ratio, group.entries_per_block)]


@each_order
@pytest.mark.parametrize("sharing", SHARINGS)
def test_entries_of_a_step_are_those_of_the_host(sharing: Sharing, reverse: bool) -> None:
    host = bookkeeping(sharing=sharing, num_slots=SLOTS, num_blocks=16)
    admit(host, SLOTS)
    slots, before, after = [4, 0, 2], [0, 120, 126], [260, 129, 127]
    prepare_forward(host, slots, [0] * 3, before)
    prepare_forward(host, slots, before, after)
    step = Step.of(host, slots, before, after)
    for table in host.tables:
        for ratio, per_block in _ratios(sharing, table.group):
            room = len(step.positions) + 3  # as where a graph has room for more tokens
            entries = torch.full((table.group.lanes, room), 7)
            cells, numbers = torch.from_numpy(table.blocks), (step.token_slots, step.positions)
            run(plan_completed(cells, ratio, per_block, *numbers, entries), reverse=reverse)
            assert bool((entries[:, len(step.positions) :] == 7).all())
            done = (step.positions + 1) % ratio == 0
            for lane, found in enumerate(entries[:, : len(step.positions)]):
                expected = step.completed[table, lane, ratio, per_block]
                assert torch.equal(found[done], expected.entries)
                assert bool((found[~done] == -1).all())


@pytest.mark.parametrize(
    ("slot", "position"),
    [(-1, 3), (SLOTS, 3), (FAR, 3), (0, -1), (0, -FAR - 1), (0, 2**63 - 1), (1, 3), (0, 131)],
)
def test_a_token_without_a_block_completes_nothing(slot: int, position: int) -> None:
    """Slot 1 holds nothing, and slot 0 one block less than its position needs."""
    host = bookkeeping(num_slots=SLOTS, num_blocks=16)
    admit(host, SLOTS)
    prepare_forward(host, [0], [0], [20])
    cells, entries = torch.from_numpy(host.tables[0].blocks), torch.tensor([[7]])
    run(plan_completed(cells, 4, 32, torch.tensor([slot]), torch.tensor([position]), entries))
    assert entries.item() == -1
