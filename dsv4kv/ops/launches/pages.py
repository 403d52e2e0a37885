"""Launch plans of pages and states: inserts, gathers, copies; tokens in, entries out; peaks.

One warp quantises or reads one entry, or several together. Slots, lengths, tables and indices are
read on the device, so a captured launch follows them; the sizes of outputs and tables are fixed in
the plan. Anything out of range is skipped, or gives zeros.

Bytes are moved as they are for peaks, of whole 16-byte chunks, and for a tier's objects: what a
family has of one page or slot, the layers' pieces one after another.

Entries have the same bits whatever ``split`` is, and whether their tokens came one by one or in a
chunk.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.ops import launches as la
from dsv4kv.ops.spec import portable
from dsv4kv.ops.storage import Compressor, PageStore, Parts, PartWrite

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


# ---- compressor states: tokens in, entries out --------------------------------------------------

_FINISH_THREADS = 128  # flush_finish, chunk_finish: a warp each entry
_FLOATS_PER_THREAD = 4

# As kernels/fold.cuh cuts an entry: 8 runs of rows in a warp where there are more than 16 rows.
_SHORT_ROWS, _RUNS = 16, 8
_MOST_WARPS = 16  # of a block that pools; with more each would have few registers
_BLOCK_READS_BYTES = 64 << 10


def split_of(compressor: Compressor) -> int:
    """Blocks that share an entry: one for every 64 KiB to read (CSA 1, HCA 8)."""
    return max(1, compressor.rows * compressor.dim * 8 // _BLOCK_READS_BYTES)


def plan_state_append(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> la.Launch:
    module = la.KernelModule.of("state.cuh", _state_macros(compressor, state))
    grid = la.blocks_for(kv.numel() // _FLOATS_PER_THREAD, THREADS, la.most_blocks(kv)), 1
    arguments = (state, kv, score, compressor.ape, slots, positions, len(slots), len(state))
    return la.Launch(module, "state_append", grid, THREADS, arguments)


def plan_flush(
    compressor: Compressor,
    state: Tensor,
    slots: Tensor,
    positions: Tensor,
    store: PageStore,
    entries: Tensor,
    *,
    variant: str = portable("flush"),
    split: int | None = None,
    scratch: Tensor | None = None,
) -> tuple[la.Launch, ...]:
    """``flush``; to be launched in this order.

    An entry of −1 skips its row, so a graph can pass every token of a step.
    variant: see ``ops.spec``.
    split: blocks that share an entry, 1, 2, 4 or 8; None for ``split_of``. A cluster always has 8.
    scratch: float32[at least E, d], where blocks that are no cluster meet; what it holds does not
    matter before or after. None for one of its own.
    """
    if not len(entries):
        return ()
    groups = slots, positions, entries
    limits = len(state), store.num_entries, compressor.groups
    pool = None if state.dim() == 3 else "flush"  # online: pooled already
    kernels, how = (pool, "flush_finish"), (variant, split, scratch)
    return _plan_entries(*kernels, compressor, state, groups, groups, store, limits, how)


def plan_compress_chunk(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    chunk: Tensor,
    store: PageStore,
    entries: Tensor,
    *,
    variant: str = portable("compress_chunk"),
    split: int | None = None,
    scratch: Tensor | None = None,
) -> tuple[la.Launch, ...]:
    """``compress_chunk``; to be launched in this order.

    The chunk's numbers are on the device, so that a graph can be replayed for another chunk.
    chunk: int64[3], slot, start and tokens; numbers that cannot be do nothing.
    kv, score: float32[most tokens, C].
    entries: int64[most groups], of the groups that end in the chunk, at most ceil(tokens / ratio);
    what follows them is not read.
    variant, split, scratch: as for ``plan_flush``.
    """
    kernels = "chunk_flush", "chunk_finish"
    rows, groups = (kv, score, compressor.ape, chunk, entries), (chunk, entries)
    limits = len(kv), len(state), store.num_entries, compressor.groups
    how = variant, split, scratch
    made: tuple[la.Launch, ...] = ()
    if len(entries):
        made = _plan_entries(*kernels, compressor, state, rows, groups, store, limits, how)
    # what the chunk leaves in the state; last, for the entries need the state as it was
    if state.dim() == 3:
        threads = la.WARP * compressor.dim // _warp_channels(compressor)
    else:
        threads = state.shape[2] * compressor.channels // _FLOATS_PER_THREAD
    module = la.KernelModule.of("state.cuh", _state_macros(compressor, state))
    grid = la.blocks_for(threads, THREADS, la.most_blocks(kv)), 1
    arguments = (state, kv, score, compressor.ape, chunk, len(kv), len(state))
    return *made, la.Launch(module, "state_keep", grid, THREADS, arguments)


def _plan_entries(
    pool: str | None,
    finish: str,
    compressor: Compressor,
    state: Tensor,
    rows: tuple[Tensor, ...],
    groups: tuple[Tensor, ...],
    store: PageStore,
    limits: tuple[int, ...],
    how: tuple[str, int | None, Tensor | None],
) -> tuple[la.Launch, ...]:
    """Kernels that pool and finish entries; a block alone, or a cluster, does both."""
    variant, split, scratch = how
    shared, count = cluster_bytes(compressor, variant), len(groups[-1])
    split = 1 if shared else split_of(compressor) if split is None else split
    module = la.KernelModule.of(
        "flush.cuh", flush_macros(compressor, state, store, variant, split)
    )
    parameters, launches = finish_parameters(compressor), list[la.Launch]()
    pooled: Tensor | int = state
    if pool:
        pooled = 0 if scratch is None or split == 1 else scratch
        if split > 1 and scratch is None:  # from torch's cache, so mostly no allocation
            pooled = torch.empty(count, compressor.dim, device=state.device)
        arguments = (state, *rows, *parameters, pooled, store.pages, *limits)
        grid, threads, cluster = (count, _RUNS), compressor.dim // _FLOATS_PER_THREAD, _RUNS
        if not shared:
            grid, threads, cluster = (count, split), pool_threads(compressor, split), 1
        launches.append(la.Launch(module, pool, grid, threads, arguments, False, cluster, shared))
    if split > 1 or not pool:
        grid = -(-count * la.WARP // _FINISH_THREADS), 1
        given = (pooled, *groups, *parameters, store.pages, count, *limits)
        launches.append(la.Launch(module, finish, grid, _FINISH_THREADS, given))
    return tuple(launches)


def finish_parameters(compressor: Compressor) -> tuple[Tensor | int, ...]:
    """What turns pooled channels into an entry, as kernels take it."""
    return compressor.norm_weight, compressor.rope, la.float_bits(compressor.norm_eps)


def cluster_bytes(compressor: Compressor, variant: str) -> int:
    """Shared memory of each of the blocks that pool an entry as a cluster; 0 if none do.

    A block has a run of rows, kv and score, and less than five numbers a channel of what it
    exchanges with the others.
    """
    if variant != "cluster" or compressor.rows <= _SHORT_ROWS:
        return 0
    return 4 * compressor.dim * (2 * compressor.rows // _RUNS + 5)


def _warp_channels(compressor: Compressor) -> int:
    runs = _RUNS if compressor.rows > _SHORT_ROWS else 1
    return _FLOATS_PER_THREAD * la.WARP // runs


def pool_threads(compressor: Compressor, split: int) -> int:
    """Threads of each of ``split`` blocks that pool an entry; raises ``ConfigError``."""
    warps = compressor.dim // _warp_channels(compressor)
    if split not in (1, 2, 4, 8) or warps % split:
        raise ConfigError(
            f"{split} blocks cannot share {warps} warps' channels of an entry: "
            "split is 1, 2, 4 or 8 and divides them."
        )
    return min(warps // split, _MOST_WARPS) * la.WARP


def _state_macros(compressor: Compressor, state: Tensor) -> dict[str, int]:
    return {
        "DSV_DIMS": compressor.dim,
        "DSV_OVERLAP": int(compressor.overlap),
        "DSV_RATIO": compressor.ratio,
        "DSV_STATE_ROWS": state.shape[2] if state.dim() == 4 else 0,
    }


def flush_macros(
    compressor: Compressor, state: Tensor, store: PageStore, variant: str, split: int
) -> dict[str, int]:
    """Everything ``flush.cuh`` needs to know, by name."""
    macros = la.format_macros(store.layout) | _state_macros(compressor, state)
    macros |= finish_macros(compressor) | {
        "DSV_AHEAD": int(variant != "serial"),
        "DSV_CLUSTER_BYTES": cluster_bytes(compressor, variant),
        "DSV_SPLIT": split,
    }
    return macros


def finish_macros(compressor: Compressor) -> dict[str, int]:
    """What ``finish.cuh`` needs to know in addition to the format, by name."""
    return {
        "DSV_HADAMARD": int(compressor.hadamard),
        "DSV_RATIO": compressor.ratio,
        "DSV_ROPE_PAIRS": compressor.rotated_pairs,
        "DSV_ROPE_TABLE": int(compressor.has_table),
        "DSV_ROUND_NORM": int(compressor.round_norm),
        "DSV_ROUND_ROPE": int(compressor.round_rope),
    }


def plan_norm_rope_insert(
    compressor: Compressor, values: Tensor, positions: Tensor, store: PageStore, entries: Tensor
) -> la.Launch:
    macros = la.format_macros(store.layout) | finish_macros(compressor)
    module, count = la.KernelModule.of("norm_rope.cuh", macros), len(entries)
    grid = max(1, -(-count * la.WARP // _FINISH_THREADS)), 1
    numbers = *finish_parameters(compressor), count, store.num_entries, compressor.groups
    arguments = (store.pages, values, positions, entries, *numbers)
    return la.Launch(module, "norm_rope_insert", grid, _FINISH_THREADS, arguments)


_PREFIXES = ("MAIN", "KEYS")
_MOST_HELPERS = 128  # threads of a block that append: with more, few blocks find room


def split_of_write(part: PartWrite) -> int:
    """Blocks that share an entry: of a ring as for ``flush``; an online state needs one."""
    return split_of(part.compressor) if part.state.dim() == 4 else 1


def plan_step_write(
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    parts: Parts,
    *,
    scratch: Tensor | None = None,
    arrivals: Tensor | None = None,
) -> la.Launch:
    """``step_write``.

    scratch: float32[at least T, d], needed where blocks share an entry (``split_of_write`` is more
    than 1); what it holds does not matter before or after.
    arrivals: int32[at least T], needed there too: zeros, and zeros again afterwards.
    """
    main, indexer, split = parts[0], len(parts) > 1, split_of_write(parts[0])
    if any(len(part.state) != len(ring.pages) for part in parts):
        raise ConfigError("a step is written to a ring and to states of as many slots.")
    if split > 1 and (scratch is None or arrivals is None):
        raise ConfigError(f"{split} blocks share an entry: give them scratch and arrivals.")
    threads = la.WARP if main.state.dim() == 3 else pool_threads(main.compressor, split)
    helpers = 0  # threads that append a block's channels while others pool
    if main.state.dim() == 4:
        fours = main.compressor.channels // split // _FLOATS_PER_THREAD
        helpers = min(_MOST_HELPERS, -(-fours // la.WARP) * la.WARP)
    macros = {"DSV_HELPERS": helpers, "DSV_INDEXER": int(indexer)}
    macros |= la.prefixed("WINDOW", la.format_macros(ring.layout) | {"DSV_PAIRED": 0})
    for prefix, part in zip(_PREFIXES, parts, strict=False):
        own = flush_macros(
            part.compressor, part.state, part.store, portable("flush"), split_of_write(part)
        )
        macros |= la.prefixed(prefix, own)
    meeting = (0, 0) if scratch is None or arrivals is None else (scratch, arrivals)
    arguments = [ring.pages, values, slots, positions, len(slots), len(ring.pages), *meeting]
    for part in parts:
        compressor, store = part.compressor, part.store
        arguments += [part.state, part.kv, part.score, compressor.ape, part.entries]
        arguments += [*finish_parameters(compressor), store.pages]
        arguments += [store.num_entries, compressor.groups]
    module, grid = la.KernelModule.of("step_write.cuh", macros), max(1, len(slots) * len(parts))
    block = threads + helpers + la.WARP
    return la.Launch(module, "step_write", (grid, split), block, tuple(arguments))
