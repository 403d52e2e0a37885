"""Launch plan of the entries that a step's tokens complete."""

from torch import Tensor

from dsv4kv.ops.kernels.launch import MOST_BLOCKS, KernelModule, Launch, blocks_for

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
    return Launch(
        KernelModule("completed.cuh", tuple(sorted(macros.items()))),
        "completed_entries",
        (blocks_for(len(slots), _THREADS, MOST_BLOCKS), lanes),
        _THREADS,
        (cells, slots, positions, entries, len(slots), entries.shape[1]),
    )
