"""Block tables where the device can read them, and who keeps them.

The host's tables hold the truth. On a GPU they are either copied, a staged transfer of the cells
that changed before every step, or kept a second time by kernels, which work out the same ids from
the same steps without hearing of the host's.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.table import BlockTable
from dsv4kv.errors import CacheError
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.launches.prepare import (
    DeviceTable,
    Refusal,
    plan_prepare,
    plan_release,
)


def stage(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device without waiting for it.

    A GPU copies from pinned memory of its own, which torch gives to nobody else before the copy
    has been made: whatever happens to ``numbers`` next, the device gets them as they are now.
    """
    if device.type == "cpu":
        return numbers.clone()
    return numbers.pin_memory().to(device, non_blocking=True)


class DeviceTables(Protocol):
    """Block tables on a device, and what keeps them equal to the host's."""

    def cells(self, table: BlockTable) -> Tensor:
        """int32[lanes, slots, width] on the device; never moves."""

    def publish(self) -> None:
        """Before a step's operations: bring over what the host has changed."""

    def prepare(self, slots: Tensor, tokens: Tensor) -> None:
        """Make slots int64[B] hold the blocks of tokens int64[B], both on the device."""

    def release(self, slot: int) -> None:
        """The host has given back a slot's blocks."""

    def check(self) -> None:
        """Raise ``CacheError`` unless the device's tables are the host's; waits for the device."""


class CopiedTables:
    """Copies of the host's tables; ``prepare: host``."""

    def __init__(self, tables: Sequence[BlockTable], device: torch.device) -> None:
        """Copy every table once; from then on they note what changes."""
        self._device = device
        self._copies: dict[BlockTable, Tensor] = {}
        for table in tables:
            table.changes = []
            self._copies[table] = stage(torch.from_numpy(table.blocks), device)

    def cells(self, table: BlockTable) -> Tensor:
        """See ``DeviceTables``."""
        return self._copies[table]

    def publish(self) -> None:
        """See ``DeviceTables``."""
        for table, copy in self._copies.items():
            if table.changes:
                self._bring(table, table.changes, copy)
                table.changes = []

    def prepare(self, slots: Tensor, tokens: Tensor) -> None:
        """See ``DeviceTables``: the host has done it, and ``publish`` copies it."""

    def release(self, slot: int) -> None:
        """See ``DeviceTables``: noted like any other change."""

    def check(self) -> None:
        """See ``DeviceTables``."""
        self.publish()
        for table, copy in self._copies.items():
            _check_equal(table, copy)

    def _bring(self, table: BlockTable, changes: Sequence[tuple[Ids, Ids]], copy: Tensor) -> None:
        """Write the changed cells as they are by now; one named twice is written twice."""
        rows, columns = (np.concatenate(each) for each in zip(*changes, strict=True))
        lanes, slots, width = table.blocks.shape
        lane_starts = np.arange(lanes)[:, None] * (slots * width)
        cells = (lane_starts + rows * width + columns).ravel()
        delta = np.stack([cells, table.blocks.reshape(-1)[cells]])
        index, blocks = stage(torch.from_numpy(delta), self._device)
        copy.view(-1).index_copy_(0, index, blocks.int())


class KernelTables:
    """Tables that kernels keep, first node of every graph; ``prepare: device``.

    The host goes through the same steps and so knows, without asking, what the device holds.
    """

    def __init__(
        self, tables: Sequence[BlockTable], max_context_tokens: int, device: torch.device
    ) -> None:
        """Allocate empty tables of the host's sizes; no step may have been prepared yet."""
        self._device = device
        self._kept = {
            table: DeviceTable.allocate(
                table.group,
                table.allocator.num_blocks,
                table.blocks.shape[1],
                max_context_tokens,
                device,
            )
            for table in tables
        }

    def cells(self, table: BlockTable) -> Tensor:
        """See ``DeviceTables``."""
        return self._kept[table].cells

    def publish(self) -> None:
        """See ``DeviceTables``: nothing comes from the host."""

    def prepare(self, slots: Tensor, tokens: Tensor) -> None:
        """See ``DeviceTables``."""
        for launch in plan_prepare(tuple(self._kept.values()), slots, tokens):
            run(launch)

    def release(self, slot: int) -> None:
        """See ``DeviceTables``."""
        slots = stage(torch.tensor([slot]), self._device)
        for launch in plan_release(tuple(self._kept.values()), slots):
            run(launch)

    def check(self) -> None:
        """See ``DeviceTables``; also what the kernels refused."""
        for table, kept in self._kept.items():
            refused = Refusal(int(kept.status[0]))
            if refused:
                raise CacheError(
                    f"the kernels that keep table {table.group.name} refused a step that the host "
                    f"took: {refused!r}."
                )
            _check_equal(table, kept.cells)


def _check_equal(table: BlockTable, cells: Tensor) -> None:
    differing = np.argwhere(cells.cpu().numpy() != table.blocks)
    if len(differing):
        lane, slot, column = differing[0]
        raise CacheError(
            f"{len(differing)} cells of table {table.group.name} on the device are not the "
            f"host's, first lane {lane}, slot {slot}, column {column}: "
            f"{int(cells[lane, slot, column])} instead of {table.blocks[lane, slot, column]}."
        )
