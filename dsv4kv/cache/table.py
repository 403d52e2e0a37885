"""The block table of one group of layers: host truth, and the view that kernels read."""

import numpy as np
import torch
from numpy.typing import NDArray

from dsv4kv.cache.allocators import make_allocator
from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.errors import OutOfBlocks
from dsv4kv.model.schema import TableGroup

NO_BLOCK = -1


Cells = tuple[Ids, Ids]
"""Rows and columns."""

_NO_CELLS = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


class Change:
    """A change of a table, as far as it has come.

    Attributes:
        slots: int64[B], whose rows change.
        held: int64[B], blocks they held before.
        emptied: Cells whose blocks are given back.
        given: Those blocks.
        num_freed: How many of them nobody holds now; None: none has been given back yet.
        filled: Cells that get a block.
        taken: Those blocks; None: none has been taken yet.
    """

    __slots__ = ("emptied", "filled", "given", "held", "num_freed", "slots", "taken")

    def __init__(self, slots: Ids, held: Ids) -> None:
        """Before anything has happened."""
        self.slots, self.held = slots, held
        self.emptied: Cells = _NO_CELLS
        self.filled: Cells = _NO_CELLS
        self.given: Ids = _NO_CELLS[0]
        self.num_freed: int | None = None
        self.taken: Ids | None = None


class BlockTable:
    """Blocks held by every slot, and the free blocks after them.

    Attributes:
        group: The layers the table serves.
        allocator: Free blocks of the layers' pools.
        blocks: int32[lanes, slots, width] on the host; ``NO_BLOCK`` beyond what is held.
        held: int64[slots], blocks each slot holds (in every lane).
        returns: How often blocks were given back. What was worked out from ``blocks`` before may
            name another request's blocks since.
        changes: Cells (slots, columns) written since whoever keeps a copy last took them; None
            where nobody does.
    """

    def __init__(
        self,
        group: TableGroup,
        num_blocks: int,
        num_slots: int,
        max_context_tokens: int,
        allocator: str = "stack",
    ) -> None:
        """Build an empty table whose rows can hold ``max_context_tokens`` tokens.

        ``allocator`` is one of ``choices.ALLOCATORS``.
        """
        self.group = group
        self.allocator = make_allocator(allocator, num_blocks, group.lanes)
        width = group.blocks_for(max_context_tokens)
        self.blocks = np.full((group.lanes, num_slots, width), NO_BLOCK, dtype=np.int32)
        self.held = np.zeros(num_slots, dtype=np.int64)
        self.returns = 0
        self.changes: list[Cells] | None = None
        # As arrays: numpy calculates with them in half the time it takes with Python's numbers.
        block_tokens = group.ratio * group.entries_per_block
        self._block_tokens = np.array(block_tokens)
        self._round_up = np.array(block_tokens - group.ratio)

    def view(self, layer_idx: int) -> torch.Tensor:
        """int32[slots, width] for one layer; shares the host's memory and never moves."""
        return torch.from_numpy(self.blocks[self.group.lane_of(layer_idx)])

    def blocks_for(self, tokens: Ids) -> Ids:
        """Blocks that hold every complete entry, int64 like ``tokens``.

        ceil(floor(p / m) / e) = floor((p + T − m) / T) with T = m · e tokens a block.
        """
        needed: Ids = (tokens + self._round_up) // self._block_tokens
        return needed

    def missing(self, slots: Ids, needed: Ids) -> Ids:
        """Blocks each slot lacks, int64[B], negative where it holds too many. Changes nothing.

        Raises:
            OutOfBlocks: More are lacking than are free or given back by the same change.
        """
        lacking: Ids = needed - self.held[slots]
        if not np.count_nonzero(lacking):
            return lacking
        short = int(np.add.reduce(lacking)) - self.allocator.num_free
        if short > 0:
            raise OutOfBlocks(
                f"the step needs {short} blocks more than the {self.allocator.num_free} free of "
                f"{self.allocator.num_blocks}: raise cache.num_blocks, or lower concurrency or "
                "context. Nothing was changed."
            )
        return lacking

    def change(self, slots: Ids, lacking: Ids) -> Change | None:
        """Give back, then take what ``missing`` returned; ``undo`` takes what this returns.

        Raises:
            OutOfBlocks: A block that was given back is another request's, too, and so not free.
                Nothing has changed.
        """
        if not np.count_nonzero(lacking):
            return None
        held = self.held[slots]
        change = Change(slots, held)
        try:
            if np.count_nonzero(lacking < 0):
                surplus = np.maximum(-lacking, 0)
                rows, columns = change.emptied = _cells(slots, held - surplus, surplus)
                change.given = self._ids(self.blocks[:, rows, columns])
                change.num_freed = self.allocator.release(change.given)
                self.returns += 1
                self.blocks[:, rows, columns] = NO_BLOCK
                self._note(rows, columns)
            growth = np.maximum(lacking, 0)
            rows, columns = change.filled = _cells(slots, held, growth)
            change.taken = self.allocator.acquire(len(rows))
            self.blocks[:, rows, columns] = change.taken
            self._note(rows, columns)
            self.held[slots] = held + lacking
            return change
        except BaseException:
            self.undo(change)
            raise

    def undo(self, change: Change) -> None:
        """Undo the last change as far as it has come."""
        self.held[change.slots] = change.held
        if change.taken is not None:
            self.blocks[:, *change.filled] = NO_BLOCK
            self.allocator.release(change.taken)
        if change.num_freed is not None:
            self.allocator.take_back(change.given)
            self.blocks[:, *change.emptied] = change.given

    def adopt(self, slot: int, blocks: Ids) -> None:
        """Let a slot hold blocks int64[n], whose references count it, after those it holds."""
        held = int(self.held[slot])
        end = held + len(blocks)
        try:
            self.blocks[:, slot, held:end] = blocks
            self._note(np.full(len(blocks), slot), np.arange(held, end))
            self.held[slot] = end
        except BaseException:
            self.blocks[:, slot, held:] = NO_BLOCK
            self.held[slot] = held
            raise

    def forget(self, slot: int) -> None:
        """Let a slot hold nothing; its blocks keep their references."""
        self.blocks[:, slot] = NO_BLOCK
        self.held[slot] = 0

    def clear(self, slot: int) -> Ids:
        """Give back all blocks of a slot; returns them, int64[n] or int64[lanes, n]."""
        held = int(self.held[slot])
        row, num_freed = self.blocks[:, slot, :held], None
        ids = self._ids(row)
        if not held:
            return ids
        try:
            num_freed = self.allocator.release(ids)
            self.returns += 1
            row[...] = NO_BLOCK
            self._note(np.full(held, slot), np.arange(held))
            self.held[slot] = 0
            return ids
        except BaseException:
            if num_freed is not None:
                self.restore(slot, ids)
            raise

    def restore(self, slot: int, ids: Ids) -> None:
        """Undo the last ``clear``, which returned ``ids``."""
        held = ids.shape[-1]
        self.allocator.take_back(ids)
        self.blocks[:, slot, :held] = ids
        self.held[slot] = held

    def _note(self, rows: Ids, columns: Ids) -> None:
        if self.changes is not None:
            self.changes.append((rows, columns))

    def _ids(self, blocks: NDArray[np.int32]) -> Ids:
        """int32[lanes, n] blocks as the allocator takes them."""
        ids = blocks.astype(np.int64)
        return ids[0] if self.group.lanes == 1 else ids


def _cells(slots: Ids, starts: Ids, counts: Ids) -> Cells:
    """Cells (row, column) of ``counts`` columns from ``starts`` on in every row."""
    if np.maximum.reduce(counts) <= 1:  # a decode step: most rows need nothing, none more than one
        some: NDArray[np.bool_] = counts > 0
        return slots[some], starts[some]
    rows = np.repeat(slots, counts)
    ends = np.cumsum(counts)
    columns = np.arange(len(rows), dtype=np.int64) + np.repeat(starts - ends + counts, counts)
    return rows, columns
