"""Block tables on the device, and launch plans that keep them."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.schema import TableGroup
from dsv4kv.ops.launches.launch import KernelModule, Launch, blocks_for, most_blocks

NO_BLOCK = -1
MOST_REQUESTS = 1024  # of one launch: a thread each, in one block
_FEWEST_THREADS = 128  # they also copy the ids of long prompts


class Refusal(enum.IntFlag):
    """Why steps were refused: bits of ``DeviceTable.status``."""

    OUT_OF_BLOCKS = 1
    CONTEXT_OVERFLOW = 2
    NOT_OWNER = 4


@dataclass(frozen=True)
class DeviceTable:
    """A block table and its free blocks in device memory, kept by kernels alone.

    What ``cache.tables.BlockTable`` is on the host; the same steps give the same ids.
    """

    group: TableGroup  # the layers the table serves
    max_context_tokens: int  # most tokens of a request
    cells: Tensor  # int32[lanes, slots, width]; −1 beyond what is held
    held: Tensor  # int64[slots], blocks each slot holds (in every lane)
    free: Tensor  # int32[lanes, blocks], stacks of free ids
    num_free: Tensor  # int64[1], height of the stacks
    # int32[2], ``Refusal`` bits of all steps since the host cleared them, and of the last step.
    # Reading them waits for the device: do so between steps
    status: Tensor

    @classmethod
    def allocate(
        cls,
        group: TableGroup,
        num_blocks: int,
        num_slots: int,
        max_context_tokens: int,
        device: torch.device,
    ) -> "DeviceTable":
        """An empty table; lower ids are taken first."""
        cells = (group.lanes, num_slots, group.blocks_for(max_context_tokens))
        descending = torch.arange(num_blocks - 1, -1, -1, dtype=torch.int32, device=device)
        return cls(
            group=group,
            max_context_tokens=max_context_tokens,
            cells=torch.full(cells, NO_BLOCK, dtype=torch.int32, device=device),
            held=torch.zeros(num_slots, dtype=torch.int64, device=device),
            free=descending.repeat(group.lanes, 1),
            num_free=torch.full((1,), num_blocks, dtype=torch.int64, device=device),
            status=torch.zeros(2, dtype=torch.int32, device=device),
        )


def plan_prepare(
    tables: Sequence[DeviceTable], slots: Tensor, tokens_after: Tensor
) -> tuple[Launch, ...]:
    """Make every slot hold exactly the blocks of its tokens: ``cache.prepare.prepare_forward``.

    slots, tokens_after: int64[B], B at most 1,024; a slot of −1 is no request. A step that
    cannot be, or does not fit into one of the tables, changes nothing in any of them and sets
    bits of every table's status.
    """
    if len(tables) == 1:
        return (_plan_change("prepare_blocks", tables[0], 0, slots, tokens_after),)
    verdict: Tensor | int = 0
    launches = []
    for table in tables:
        launches.append(_plan_change("judge_blocks", table, verdict, slots, tokens_after))
        verdict = table.status[1:]
    launches += [
        _plan_change("prepare_blocks", table, verdict, slots, tokens_after) for table in tables
    ]
    return tuple(launches)


def plan_release(tables: Sequence[DeviceTable], slots: Tensor) -> tuple[Launch, ...]:
    """Give back all blocks of slots int64[B], B at most 1,024; −1 is none."""
    return tuple(_plan_change("prepare_blocks", table, 0, slots, 0) for table in tables)


def _plan_change(
    kernel: str,
    table: DeviceTable,
    verdict: Tensor | int,
    slots: Tensor,
    tokens_after: Tensor | int,
) -> Launch:
    if len(slots) > MOST_REQUESTS:
        raise ConfigError(
            f"{len(slots)} requests in a step: the device prepares at most "
            f"{MOST_REQUESTS}. Lower the batch, or prepare on the host."
        )
    threads = max(_FEWEST_THREADS, 1 << (len(slots) - 1).bit_length())
    lanes, rows, width = table.cells.shape
    macros = {
        "DSV_BLOCKS": table.free.shape[1],
        "DSV_BLOCK_ENTRIES": table.group.entries_per_block,
        "DSV_LANES": lanes,
        "DSV_MAX_TOKENS": table.max_context_tokens,
        "DSV_RATIO": table.group.ratio,
        "DSV_REQUESTS": threads,
        "DSV_SLOTS": rows,
        "DSV_WIDTH": width,
    }
    state = (table.cells, table.held, table.free, table.num_free, table.status)
    arguments = (*state, verdict, slots, tokens_after, len(slots))
    return Launch(KernelModule.of("prepare.cuh", macros), kernel, (1, 1), threads, arguments)


_THREADS = 256


def plan_completed(
    cells: Tensor,
    ratio: int,
    entries_per_block: int,
    slots: Tensor,
    positions: Tensor,
    entries: Tensor,
) -> Launch:
    """Physical entries that tokens complete in layers of ``ratio``, −1 where none.

    cells: int32[lanes, rows, width], block tables; slots, positions: int64[T], of every token, a
    slot of −1 is none; entries: int64[lanes, T or more], written, as ``flush`` takes them later
    in the same graph.
    """
    lanes, rows, width = cells.shape
    macros = {
        "DSV_BLOCK_ENTRIES": entries_per_block,
        "DSV_RATIO": ratio,
        "DSV_SLOTS": rows,
        "DSV_WIDTH": width,
    }
    module = KernelModule.of("completed.cuh", macros)
    grid = blocks_for(len(slots), _THREADS, most_blocks(slots)), lanes
    arguments = (cells, slots, positions, entries, len(slots), entries.shape[1])
    return Launch(module, "completed_entries", grid, _THREADS, arguments)
