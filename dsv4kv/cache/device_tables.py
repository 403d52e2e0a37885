"""Block tables where the device can read them, and who keeps them.

The host's tables hold the truth. On a GPU they are either copied, a staged transfer of the cells
that changed before every step, or kept a second time by kernels, which work out the same ids from
the same steps without hearing of the host's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.table import BlockTable
from dsv4kv.errors import CacheError
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.launches.prepare import DeviceTable, Refusal, plan_prepare, plan_release


def stage(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device without waiting for it.

    A GPU copies from a pinned buffer that torch does not reuse before the copy is done, so
    ``numbers`` may change at once.
    """
    if device.type == "cpu":
        return numbers.clone()
    return numbers.pin_memory().to(device, non_blocking=True)


class DeviceTables:
    """Block tables on a device, kept equal to the host's."""

    cells: dict[BlockTable, Tensor]
    """By host table, int32[lanes, slots, width] on the device; never moves."""

    def publish(self) -> None:
        """Before a step's operations: bring over what the host has changed."""

    def prepare(self, slots: Tensor, tokens: Tensor) -> None:
        """Make slots int64[B] hold the blocks of tokens int64[B], both on the device."""

    def release(self, slot: int) -> None:
        """The host has given back a slot's blocks."""

    def check(self) -> None:
        """Raise ``CacheError`` unless the device's tables are the host's; waits for the device."""
        self.publish()
        for table, cells in self.cells.items():
            differing = np.argwhere(cells.cpu().numpy() != table.blocks)
            if len(differing):
                lane, slot, column = differing[0]
                found = int(cells[lane, slot, column])
                raise CacheError(
                    f"{len(differing)} cells of table {table.group.name} on the device are not "
                    f"the host's, first lane {lane}, slot {slot}, column {column}: {found} "
                    f"instead of {table.blocks[lane, slot, column]}."
                )


class CopiedTables(DeviceTables):
    """Copies of the host's tables; ``prepare: host``."""

    def __init__(self, tables: Sequence[BlockTable], device: torch.device) -> None:
        """Copy every table once; from then on they note what changes."""
        self._device = device
        self.cells = {}
        for table in tables:
            table.changes = []
            self.cells[table] = stage(torch.from_numpy(table.blocks), device)

    def publish(self) -> None:
        """Copy the cells that changed as they are now, in one transfer for each table."""
        for table, copy in self.cells.items():
            if not table.changes:
                continue
            rows, columns = (np.concatenate(each) for each in zip(*table.changes, strict=True))
            table.changes = []
            lanes, slots, width = table.blocks.shape
            lane_starts = np.arange(lanes)[:, None] * (slots * width)
            cells = (lane_starts + rows * width + columns).ravel()
            delta = np.stack([cells, table.blocks.reshape(-1)[cells]])
            index, blocks = stage(torch.from_numpy(delta), self._device)
            copy.view(-1).index_copy_(0, index, blocks.int())


class KernelTables(DeviceTables):
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
        self.cells = {table: kept.cells for table, kept in self._kept.items()}

    def prepare(self, slots: Tensor, tokens: Tensor) -> None:
        """As the first node of every graph."""
        for launch in plan_prepare(tuple(self._kept.values()), slots, tokens):
            run(launch)

    def release(self, slot: int) -> None:
        """Give the slot's blocks back here, too."""
        slots = stage(torch.tensor([slot]), self._device)
        for launch in plan_release(tuple(self._kept.values()), slots):
            run(launch)

    def check(self) -> None:
        """Also raise what the kernels refused."""
        for table, kept in self._kept.items():
            if refused := Refusal(int(kept.status[0])):
                raise CacheError(
                    f"the kernels that keep table {table.group.name} refused a step that the host "
                    f"took: {refused!r}."
                )
        super().check()
