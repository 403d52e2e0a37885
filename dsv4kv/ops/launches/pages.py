"""Launch plans of pages: inserts, gathers and copies; peaks that gathers are compared with.

One warp quantises or reads one entry, or several together. Slots, lengths, tables and indices are
read on the device, so a captured launch follows them; the sizes of outputs and tables are fixed in
the plan. Anything out of range is skipped, or gives zeros.

Bytes are moved as they are for peaks, of whole 16-byte chunks, and for a tier's objects: what a
family has of one page or slot, the layers' pieces one after another.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from dsv4kv.ops import launches as la
from dsv4kv.ops.spec import portable
from dsv4kv.ops.storage import PageStore

UNROLL = {"ahead": 4, "stepwise": 2}
"""Steps a gathering warp has in flight, 1, 2 or 4, by variant; half of them where a lane has more
than two chunks of an entry, or registers do not do."""

RESIDENT_BLOCKS = 4
"""Blocks that a multiprocessor holds, what its registers allow: the grid of ``ahead`` and of
``resident``, whose blocks stay to the end, so that there is no last round with few of them."""

THREADS = 256  # of a block
_MOST_PAIRED_DIMS = 512
_ROUNDS = 4  # blocks for each place on the GPU, so that the last ones to run are few
_CHANNELS_PER_LANE = 8
_COPIED_BYTES = 16  # by a thread


def plan_window_insert(
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    *,
    variant: str = portable("window_insert"),
) -> la.Launch:
    # A slot's tokens are adjacent: the one that replaces another in its ring row is a fixed
    # distance further on, and no two warps write one row.
    arguments = (ring.pages, values, slots, positions, len(slots), len(ring.pages))
    return _insert("window_insert", ring, len(slots), arguments, variant)


def plan_entry_insert(
    store: PageStore, values: Tensor, entries: Tensor, *, variant: str = portable("entry_insert")
) -> la.Launch:
    arguments = (store.pages, values, entries, len(entries), store.num_entries)
    return _insert("entry_insert", store, len(entries), arguments, variant)


def _insert(
    kernel: str, store: PageStore, count: int, arguments: tuple[Tensor | int, ...], variant: str
) -> la.Launch:
    # Three chunks a lane of two entries are more than registers hold: V3.2's go one by one.
    resident = variant == "resident" and store.layout.format.dims <= _MOST_PAIRED_DIMS
    ring = int(kernel == "window_insert")
    macros = la.format_macros(store.layout) | {"DSV_PAIRED": int(resident), "DSV_RING": ring}
    held = RESIDENT_BLOCKS * la.multiprocessors(store.pages)
    most = held if resident else la.most_blocks(store.pages)
    grid = la.blocks_for(count, THREADS // la.WARP, most), 1
    return la.Launch(la.KernelModule.of("insert.cuh", macros), kernel, grid, THREADS, arguments)


def plan_indexer_insert(
    store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool
) -> la.Launch:
    if not hadamard:
        return plan_entry_insert(store, keys, entries)
    module = la.KernelModule.of("indexer.cuh", la.format_macros(store.layout))
    grid = la.blocks_for(len(entries), THREADS // la.WARP, la.most_blocks(store.pages)), 1
    arguments = (store.pages, keys, entries, len(entries), store.num_entries)
    return la.Launch(module, "indexer_insert", grid, THREADS, arguments)


def plan_gather_topk(
    store: PageStore,
    table: Tensor,
    slots: Tensor,
    indices: Tensor,
    lengths: Tensor,
    out: Tensor,
    **how: Any,
) -> la.Launch:
    sizes = (*indices.shape, *table.shape, len(store.pages))
    arguments = (store.pages, table, slots, indices, lengths, out, *sizes)
    return _gather("gather_topk", store, out, arguments, **how)


def plan_gather_all(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor, **how: Any
) -> la.Launch:
    """Entries from M on are skipped; rows after the largest length stay as they are."""
    sizes = (*out.shape[:2], *table.shape, len(store.pages))
    arguments = (store.pages, table, slots, lengths, out, *sizes)
    return _gather("gather_all", store, out, arguments, **how)


def plan_gather_window(
    ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor, **how: Any
) -> la.Launch:
    arguments = (ring.pages, slots, tokens, out, *out.shape[:2], len(ring.pages))
    return _gather("gather_window", ring, out, arguments, **how)


def plan_gather_entries(store: PageStore, entries: Tensor, out: Tensor, **how: Any) -> la.Launch:
    """Dequantise physical entries int32[n] into out bf16[n, D]; −1 gives zeros."""
    arguments = (store.pages, entries, out, len(entries), len(store.pages))
    return _gather("gather_entries", store, out, arguments, **how)


def _gather(
    kernel: str,
    store: PageStore,
    out: Tensor,
    arguments: tuple[Tensor | int, ...],
    *,
    variant: str = portable("gather_topk"),
    unroll: int | None = None,
) -> la.Launch:
    """``variant``: see ``ops.spec``, which has the same ones for all gathers."""
    dims = store.layout.format.dims
    lanes = min(la.WARP, dims // _CHANNELS_PER_LANE)
    ahead, long = variant == "ahead", dims > 2 * la.WARP * _CHANNELS_PER_LANE
    macros = la.format_macros(store.layout) | {
        "DSV_AHEAD": int(ahead),
        "DSV_RING": int(kernel == "gather_window"),
        "DSV_UNROLL": unroll or UNROLL[variant] // (2 if long else 1),
    }
    most = RESIDENT_BLOCKS * la.multiprocessors(store.pages)
    most = most if ahead else la.most_blocks(store.pages) * _ROUNDS
    grid = la.blocks_for(out.numel() // dims, THREADS // lanes, most), 1
    return la.Launch(la.KernelModule.of("gather.cuh", macros), kernel, grid, THREADS, arguments)


def plan_page_copy(store: PageStore, sources: Tensor, targets: Tensor) -> la.Launch:
    page_bytes = store.layout.page_bytes
    module = la.KernelModule.of("page_copy.cuh", {"DSV_PAGE_BYTES": page_bytes})
    chunks = len(sources) * page_bytes // _COPIED_BYTES
    grid = la.blocks_for(chunks, THREADS, la.most_blocks(store.pages)), 1
    arguments = (store.pages, sources, targets, len(sources), len(store.pages))
    return la.Launch(module, "page_copy", grid, THREADS, arguments)


CHUNK_BYTES = 16
"""Pieces and strides of objects are multiples of it."""
Way = Literal["take", "put"]

_PEAKS, _OBJECTS = la.KernelModule("bandwidth.cuh", ()), la.KernelModule("objects.cuh", ())
_CHUNKS_IN_FLIGHT = 8
_CHUNKS_EACH = 4  # of a thread
_MOST_BLOCKS_OF_A_PIECE = 8


def plan_copy_peak(source: Tensor, target: Tensor) -> la.Launch:
    """Copy all of ``source`` to ``target``, which is as long and does not overlap it."""
    return _plan("copy_peak", (source, target), _CHUNKS_IN_FLIGHT)


def plan_write_peak(target: Tensor) -> la.Launch:
    """Fill ``target``: every 32-bit word is the number of its chunk."""
    return _plan("write_peak", (target,), 1)


def plan_read_peak(source: Tensor, sums: Tensor) -> la.Launch:
    """Read all of ``source``.

    sums: int32[n · THREADS] for n blocks, each thread's sum of the 32-bit words it has read.
    """
    grid = len(sums) // THREADS, 1
    return la.Launch(_PEAKS, "read_peak", grid, THREADS, (source, sums, _chunks(source)))


def plan_nothing(place: Tensor) -> la.Launch:
    """One block that does nothing, on the GPU that ``place`` is on."""
    return la.Launch(_PEAKS, "do_nothing", (1, 1), THREADS, (place,))


def _plan(kernel: str, tensors: tuple[Tensor, ...], in_flight: int) -> la.Launch:
    chunks = _chunks(tensors[0])
    grid = la.blocks_for(chunks, THREADS * in_flight, la.most_blocks(tensors[0])), 1
    return la.Launch(_PEAKS, kernel, grid, THREADS, (*tensors, chunks))


def _chunks(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size() // CHUNK_BYTES


def pool_table(pools: Sequence[Tensor]) -> Tensor:
    """Where layers' pools are, for ``plan_objects``: int64[2, layers], addresses and pieces."""
    rows = [[pool.data_ptr() for pool in pools], [len(pool) for pool in pools]]
    return torch.tensor(rows, dtype=torch.int64, device=pools[0].device)


def plan_objects(
    way: Way, table: Tensor, ids: Tensor, objects: Tensor, piece_bytes: int, stride: int
) -> la.Launch:
    """Gather objects from the pools of a ``pool_table`` (``take``), or put them back.

    ids: int64[layers, n], the page or slot of every object; one that does not exist is skipped.
    objects: uint8, n objects ``stride`` bytes apart, a piece of ``piece_bytes`` of each layer.
    The caller keeps the pools alive.
    """
    layers, count = ids.shape
    chunks = piece_bytes // CHUNK_BYTES
    across = la.blocks_for(chunks, THREADS * _CHUNKS_EACH, _MOST_BLOCKS_OF_A_PIECE)
    grid = across, la.blocks_for(layers * count, 1, la.most_blocks(objects))
    sizes = (count, layers, piece_bytes, stride)
    return la.Launch(_OBJECTS, f"{way}_objects", grid, THREADS, (objects, table, ids, *sizes))


def plan_completed(
    cells: Tensor,
    ratio: int,
    entries_per_block: int,
    slots: Tensor,
    positions: Tensor,
    entries: Tensor,
) -> la.Launch:
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
    module = la.KernelModule.of("completed.cuh", macros)
    grid = la.blocks_for(len(slots), THREADS, la.most_blocks(slots)), lanes
    arguments = (cells, slots, positions, entries, len(slots), entries.shape[1])
    return la.Launch(module, "completed_entries", grid, THREADS, arguments)
