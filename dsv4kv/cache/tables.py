"""Block tables: the host's, which hold the truth, and their copies where the device can read them.

On a GPU the cells that changed are copied before every step, in a staged transfer.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.blocks import BlockPool, Ids
from dsv4kv.errors import CacheError, OutOfBlocks
from dsv4kv.model.plan import TableGroup

NO_BLOCK = -1
Cells = tuple[Ids, Ids]
"""Rows and columns."""


class BlockTable:
    """Blocks held by every slot, and the free blocks after them."""

    def __init__(
        self, group: TableGroup, num_blocks: int, num_slots: int, max_context_tokens: int
    ) -> None:
        """Build an empty table whose rows can hold ``max_context_tokens`` tokens."""
        self.group = group
        self.allocator = BlockPool(num_blocks)
        width = group.blocks_for(max_context_tokens)
        # the same ids in every lane; ``NO_BLOCK`` beyond what is held
        self.blocks = np.full((group.lanes, num_slots, width), NO_BLOCK, dtype=np.int32)
        self.held = np.zeros(num_slots, dtype=np.int64)  # blocks of each slot
        # how often each slot gave blocks back: entries computed before may be another's since
        self.returns = np.zeros(num_slots, dtype=np.int64)
        # written since they were last copied to the device; None without such a copy
        self.changes: list[Cells] | None = None

    def view(self, layer_idx: int) -> torch.Tensor:
        """int32[slots, width] for one layer; shares the host's memory and never moves."""
        return torch.from_numpy(self.blocks[self.group.lane_of(layer_idx)])

    def missing(self, slots: Ids, needed: Ids) -> Ids:
        """Blocks each slot lacks, int64[B], negative where it holds too many. Changes nothing.

        Raises:
            OutOfBlocks: More are lacking than are free or become so by the same change; a block
                that is given back and is another request's, too, does not.
        """
        lacking: Ids = needed - self.held[slots]
        if not np.count_nonzero(lacking):
            return lacking
        short = int(np.maximum(lacking, 0).sum()) - self.allocator.num_free
        if short > 0:
            rows, columns = self._surplus(slots, lacking)
            short -= self.allocator.num_freed(self.blocks[0, rows, columns])
        if short > 0:
            raise OutOfBlocks(
                f"the step needs {short} blocks more than the {self.allocator.num_free} free of "
                f"{self.allocator.num_blocks}: raise cache.num_blocks, or lower concurrency or "
                "context. Nothing was changed."
            )
        return lacking

    def change(self, slots: Ids, lacking: Ids) -> None:
        """Give back, then take what ``missing`` returned."""
        if not np.count_nonzero(lacking):
            return
        held = self.held[slots]
        if np.count_nonzero(lacking < 0):
            rows, columns = self._surplus(slots, lacking)
            self.allocator.release(self.blocks[0, rows, columns])
            self.returns[slots[lacking < 0]] += 1
            self.blocks[:, rows, columns] = NO_BLOCK
            self._note(rows, columns)
        rows, columns = _cells(slots, held, np.maximum(lacking, 0))
        self.blocks[:, rows, columns] = self.allocator.acquire(len(rows))
        self._note(rows, columns)
        self.held[slots] = held + lacking

    def adopt(self, slot: int, blocks: Ids) -> None:
        """Let a slot hold blocks int64[n], whose references count it, after those it holds."""
        held = int(self.held[slot])
        end = held + len(blocks)
        self.blocks[:, slot, held:end] = blocks
        self._note(np.full(len(blocks), slot), np.arange(held, end))
        self.held[slot] = end

    def clear(self, slot: int) -> None:
        """Give back all blocks of a slot."""
        held = int(self.held[slot])
        if not held:
            return
        self.allocator.release(self.blocks[0, slot, :held])
        self.returns[slot] += 1
        self.blocks[:, slot, :held] = NO_BLOCK
        self._note(np.full(held, slot), np.arange(held))
        self.held[slot] = 0

    def _surplus(self, slots: Ids, lacking: Ids) -> Cells:
        surplus = np.maximum(-lacking, 0)
        return _cells(slots, self.held[slots] - surplus, surplus)

    def _note(self, rows: Ids, columns: Ids) -> None:
        if self.changes is not None:
            self.changes.append((rows, columns))


def _cells(slots: Ids, starts: Ids, counts: Ids) -> Cells:
    """Cells (row, column) of ``counts`` columns from ``starts`` on in every row."""
    rows = np.repeat(slots, counts)
    ends = np.cumsum(counts)
    columns = np.arange(len(rows), dtype=np.int64) + np.repeat(starts - ends + counts, counts)
    return rows, columns


def stage(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to a device without waiting for it.

    A GPU copies from a pinned buffer that torch does not reuse before the copy is done, so
    ``numbers`` may change immediately.
    """
    if device.type == "cuda":
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device, copy=True)


class DeviceTables:
    """Copies of the host's block tables on a device."""

    cells: dict[BlockTable, Tensor]
    """By host table, int32[lanes, slots, width] on the device; never moves."""

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
