"""Launch plans of an indexer: queries, scores, and the selection of entries.

Slots, lengths and tables are read on the device, so a captured launch follows them; room for
scores and choices is fixed in the plan. Scores are made by blocks that stay, and share the keys of
all tokens out evenly, whatever the lengths. A selection has a block for each run of a row, then
one for each row's runs.
"""

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.ops.launches import launch as la
from dsv4kv.ops.storage import PageStore

_DIMS = 128
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
    kept = tokens * (-(-heads // 8) * 8 * (_DIMS + 4) + 4) + 4  # queries, weights and lengths
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
    if dims != _DIMS:
        raise ConfigError(
            f"indexer keys of {dims} channels cannot be scored on a GPU: take {_DIMS}, or backend "
            "cpu."
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
