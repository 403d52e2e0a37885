"""Launch plans of a decode step's reads: an indexer's queries, scores and choices, and attention.

Slots, lengths, tables and indices are read on the device, so a captured launch follows them; room
for scores, choices and entries is fixed in the plan. Scores are made by blocks that stay, and
share the keys of all tokens out evenly, whatever the lengths. A selection has a block for each run
of a row, then one for each row's runs. Blocks of attention share all tokens' entries out, then
others merge what they have.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.ops import launches as la
from dsv4kv.ops.storage import Entries, PageStore

_KEY_DIMS = 128
_QUERY = PageLayout(FORMATS["indexer"]["fp8"], 32)  # its entries are no part of a query
_THREADS = 256
_LANES = 16  # of a head


def plan_indexer_query(
    queries: Tensor,
    weights: Tensor,
    turns: Tensor,
    hadamard: bool,
    out: Tensor,
    out_weights: Tensor,
) -> la.Launch:
    """``indexer_query``; vectors have 128 channels."""
    tokens, heads, dims = queries.shape
    _refuse_other_dims(dims)
    macros = la.format_macros(_QUERY) | {
        "DSV_ROPE_PAIRS": turns.shape[1] // 2,
        "DSV_HADAMARD": int(hadamard),
    }
    sizes = (tokens * heads, heads, la.float_bits((heads * dims) ** -0.5))
    module, arguments = la.KernelModule.of("query.cuh", macros), (queries, weights, turns, out)
    grid = la.blocks_for(tokens * heads, _THREADS // _LANES, la.most_blocks(queries)), 1
    return la.Launch(module, "indexer_query", grid, _THREADS, (*arguments, out_weights, *sizes))


_KEYS, _STAGES = 32, 2  # of a warp: one is worked on while the other is under way
_RESIDENT_WARPS = 12  # of a multiprocessor, by their registers


def plan_index_scores(
    store: PageStore,
    table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    queries: Tensor,
    weights: Tensor,
    blocks: Tensor | None,
    out: Tensor,
    *,
    most_shared: int | None = None,
) -> la.Launch:
    """``index_scores``; keys have 128 channels.

    most_shared: bytes of shared memory that a block may have; None for what the GPU gives it.

    Tokens of a request share a read of its keys where their numbers are in one run of four (of
    bf16 keys two): all of them if each request has 1, 2 or 4.
    """
    entry, heads = store.layout.format, queries.shape[1]
    _refuse_other_dims(entry.dims)
    tokens = 2 if entry.value == "bf16" else 4
    kept = tokens * (-(-heads // 8) * 8 * (_KEY_DIMS + 4) + 4) + 4  # queries, weights and lengths
    of_warp = _STAGES * _KEYS * (entry.data_row_bytes + 8)
    most = most_shared or la.most_shared(out)
    warps = next((each for each in (12, 6) if each * of_warp + kept <= most), 4)
    shared = -(-(warps * of_warp + kept) // 16) * 16
    macros = la.format_macros(store.layout) | {
        "DSV_HEADS": heads,
        "DSV_WARPS": warps,
        "DSV_TOKENS": tokens,
        "DSV_SHARED_BYTES": shared,
    }
    candidates, count = (0, 0) if blocks is None else (blocks, blocks.shape[1])
    module = la.KernelModule.of("scores.cuh", macros)
    grid = la.resident_blocks(out, shared, _RESIDENT_WARPS // warps)
    tensors = (store.pages, table, slots, lengths, queries, weights, candidates, out)
    arguments = (*tensors, *out.shape, count, *table.shape, len(store.pages))
    return la.Launch(
        module, "index_scores", (grid, 1), warps * la.WARP, arguments, shared_bytes=shared
    )


def _refuse_other_dims(dims: int) -> None:
    if dims != _KEY_DIMS:
        raise ConfigError(
            f"indexer keys of {dims} channels cannot be scored on a GPU: take {_KEY_DIMS}, or "
            "backend cpu."
        )


RUN = 32_768
"""Most columns of a run: 128 KiB of scores, which a multiprocessor's L1 holds."""

_SELECTING_THREADS = 1024


def runs_of(columns: int) -> int:
    """Runs that a row of scores is split into."""
    return max(1, -(-columns // RUN))


def plan_select_topk(
    scores: Tensor,
    lengths: Tensor,
    blocks: Tensor | None,
    table: Tensor,
    slots: Tensor,
    page_entries: int,
    out: Tensor,
    entries: Tensor,
) -> tuple[la.Launch, ...]:
    """``select_topk``; to be launched in this order."""
    columns, candidates = scores.shape[1], 0 if blocks is None else blocks
    block_entries = 0 if blocks is None else columns // max(blocks.shape[1], 1)
    macros = ("DSV_BLOCK_ENTRIES", block_entries), ("DSV_PAGE_ENTRIES", page_entries)
    found = _meeting(columns, out)
    places = (lengths, candidates, table, slots, out, entries, *found)
    sizes = (columns, out.shape[1], *table.shape)
    module, runs = la.KernelModule("topk.cuh", macros), runs_of(columns)
    select = la.Launch(
        module, "select_topk", (len(out), runs), _SELECTING_THREADS, (scores, *places, *sizes)
    )
    merge = la.Launch(
        module, "merge_topk", (len(out), 1), _SELECTING_THREADS, (*places, runs, *sizes)
    )
    return _in_order(out, select, merge)


def plan_select_blocks(
    scores: Tensor, lengths: Tensor, block_entries: int, out: Tensor
) -> tuple[la.Launch, ...]:
    """``select_blocks``; to be launched in this order."""
    module = la.KernelModule("candidates.cuh", (("DSV_BLOCK_ENTRIES", block_entries),))
    columns, most = scores.shape[1], out.shape[1]
    blocks = -(-columns // block_entries)
    runs, chosen = runs_of(blocks), _meeting(blocks, out)
    arguments = (scores, lengths, out, *chosen, columns, most)
    select = la.Launch(module, "select_blocks", (len(out), runs), _SELECTING_THREADS, arguments)
    merge = la.Launch(
        module, "merge_blocks", (len(out), 1), _SELECTING_THREADS, (out, *chosen, runs, most)
    )
    return _in_order(out, select, merge)


def _meeting(columns: int, out: Tensor) -> tuple[Tensor | int, Tensor | int]:
    """Where the runs of rows meet; from torch's cache, so mostly no allocation."""
    if runs_of(columns) == 1:
        return 0, 0
    shape = (2, len(out), runs_of(columns), out.shape[1])
    found = torch.empty(shape, dtype=torch.int32, device=out.device)
    return found[0], found[1]


def _in_order(out: Tensor, select: la.Launch, merge: la.Launch) -> tuple[la.Launch, ...]:
    if not out.numel():
        return ()
    return (select, merge) if select.grid[1] > 1 else (select,)


_DIMS = 512
_HEAD_TILES = (16, 32, 64)
_MERGE = la.KernelModule("merge.cuh", ())
_MERGING_BLOCKS, _FEWEST_ROWS = 1024, 4  # of the grid that merges what is cut
_KEPT_BYTES = 80  # a block's run and piece, and some for barriers


@dataclass(frozen=True)
class Shape:
    """Heads and entries of a block, see ``attend.cuh``."""

    heads: int  # most heads, 16, 32 or 64
    tile: int  # entries
    warps: int  # that share them out
    resident: int  # blocks that a multiprocessor holds, by their registers
    source: str = "attend.cuh"  # of its kernel
    cluster: int = 1  # blocks that share their entries, each with heads of its own


WIDE, NARROW = Shape(64, 64, 8, 1), Shape(32, 32, 4, 2)
"""For GPUs whose blocks have 227 KiB of shared memory, and for all others or few heads."""

GROUPS = Shape(64, 64, 16, 1, "attend_groups.cuh")
"""Eight warps that decode for two warpgroups, see ``attend_groups.cuh``."""

PAIRS = replace(GROUPS, cluster=2)
"""The same by two blocks of a cluster, which decode half of the entries each."""


def plan_attend(
    ring: PageStore,
    slots: Tensor,
    tokens: Tensor,
    window: int,
    entries: Entries | None,
    queries: Tensor,
    sinks: Tensor,
    scale: float,
    out: Tensor,
    lse: Tensor,
    *,
    variant: str = "warps",
    shape: Shape | None = None,
    blocks: int | None = None,
) -> tuple[la.Launch, ...]:
    """``attend``; to be launched in this order. Entries have 512 channels.

    variant: ``ops.spec.OPERATIONS`` lists them.
    shape, blocks: of a block, and how many (or clusters) share all tokens' tiles out; None for
    what suits GPU and heads, and all that it holds. Which they are changes outputs by no more
    than rounding.
    """
    heads, dims = queries.shape[1:]
    if dims != _DIMS:
        raise ConfigError(
            f"entries of {dims} channels cannot be attended to on a GPU: take {_DIMS}, or backend "
            "cpu."
        )
    if not len(slots):
        return ()
    if shape is None:
        wide = la.most_shared(queries) == la.LARGE and heads > NARROW.heads
        shape = {"groups": GROUPS, "cluster": PAIRS}.get(variant, WIDE if wide else NARROW)
    groups, most_tiles = -(-heads // shape.heads), _most_tiles(window, entries, shape)
    # heads of a block, padding included: as few as its products can have
    least = shape.heads if shape.source == GROUPS.source else min(heads, shape.heads)
    tile_heads = next(size for size in _HEAD_TILES if size >= least)
    pieces = len(slots) * groups
    module = _module(ring, entries, shape, tile_heads)
    shared = dict(module.macros)["DSV_SHARED_BYTES"]
    places = la.resident_blocks(queries, shared, shape.resident)
    runs = blocks or max(1, min(places, pieces * most_tiles) // shape.cluster)
    sums, results, parts = _scratch(queries, 2 * runs * shape.cluster * tile_heads, pieces)
    arguments = (
        *(ring.pages, slots, tokens, *_others(entries)[0], queries, sinks, out, lse),
        *(sums, results, parts),
        *(len(slots), len(ring.pages), window, *_others(entries)[1]),
        *(heads, la.float_bits(scale)),
    )
    threads = shape.warps * la.WARP
    grid = runs, shape.cluster
    attend = la.Launch(
        module, "attend", grid, threads, arguments, cluster=shape.cluster, shared_bytes=shared
    )
    if runs == 1 or most_tiles == 1:  # no token is cut
        return (attend,)
    rows = max(_FEWEST_ROWS, min(tile_heads, _MERGING_BLOCKS // pieces))
    merging = (sums, results, parts, sinks, out, lse, heads, tile_heads)
    return attend, la.Launch(_MERGE, "merge_parts", (pieces, rows), _DIMS // 4, merging)


def _most_tiles(window: int, entries: Entries | None, shape: Shape) -> int:
    most = 0
    if entries is not None:
        held = entries.table.shape[1] * entries.store.layout.entries
        most = held if entries.indices is None else entries.indices.shape[1]
    return -(-window // shape.tile) + -(-most // shape.tile)


def _module(ring: PageStore, entries: Entries | None, shape: Shape, heads: int) -> la.KernelModule:
    layouts = {"WINDOW": ring.layout} | ({"MAIN": entries.store.layout} if entries else {})
    # an entry as it is stored, in whole 16 bytes
    staged = max(-(-layout.format.entry_bytes // 16) * 16 for layout in layouts.values())
    macros = {
        "DSV_HEADS": heads,
        "DSV_TILE": shape.tile,
        "DSV_CLUSTER": shape.cluster,
        "DSV_COMPRESSED": int(entries is not None),
        "DSV_CHOSEN": int(entries is not None and entries.indices is not None),
    }
    warps = shape.source != GROUPS.source
    macros |= _warp_macros(shape, heads, staged) if warps else _group_macros(staged)
    for part, layout in layouts.items():
        macros |= la.prefixed(part, la.format_macros(layout))
    return la.KernelModule.of(shape.source, macros)


def _warp_macros(shape: Shape, heads: int, staged: int) -> dict[str, int]:
    """Queries, entries, weights, and the next entries as they are stored: see attend.cuh."""
    decoded = (heads + shape.tile) * _DIMS * 2 + heads * shape.tile * 2
    column_warps = shape.warps // (2 if heads == _HEAD_TILES[-1] else 1)
    shared = decoded + shape.tile * staged + (column_warps + 1) * heads * 4 + 2 * shape.tile * 4
    shared += _KEPT_BYTES
    return {"DSV_WARPS": shape.warps, "DSV_SHARED_BYTES": shared}


def _group_macros(staged: int) -> dict[str, int]:
    """Queries, two tiles, weights; stored entries of each decoding warp: attend_groups.cuh."""
    heads, tile, decoding = GROUPS.heads, GROUPS.tile, GROUPS.warps - 8
    held = (heads + 2 * tile) * _DIMS * 2 + heads * tile * 2 + 2 * heads * 4 + 2 * tile * 4
    held += (1 + decoding) * _KEPT_BYTES
    stages = next(n for n in (4, 2) if held + decoding * n * staged <= la.LARGE)
    return {"DSV_STAGES": stages, "DSV_SHARED_BYTES": held + decoding * stages * staged}


def _others(entries: Entries | None) -> tuple[tuple[Tensor | int, ...], tuple[int, ...]]:
    """Compressed entries as the kernel takes them: tensors, then sizes."""
    if entries is None:
        return (0, 0, 0, 0), (0, 0, 0, 0)
    pages, indices = entries.store.pages, entries.indices
    chosen, choices = (0, 0) if indices is None else (indices, indices.shape[1])
    sizes = (*entries.table.shape, choices, len(pages))
    return (pages, entries.table, entries.lengths, chosen), sizes


def _scratch(queries: Tensor, places: int, pieces: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where blocks that share a token meet: sums, tops and weights, and which blocks those are."""
    found = torch.empty(places * (_DIMS + 2) + 2 * pieces, device=queries.device)
    sums, rest = found[: places * _DIMS], found[places * _DIMS :]
    return sums, rest[: places * 2], rest[places * 2 :]
