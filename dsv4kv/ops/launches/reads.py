"""Launch plans of attention: blocks that share all tokens' entries out, then what merges them.

Slots, lengths, tables and indices are read on the device, so a captured launch follows them; room
for entries is fixed in the plan.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import PageLayout
from dsv4kv.ops.launches import launch as la
from dsv4kv.ops.storage import Entries, PageStore

_DIMS = 512
_HEAD_TILES = (16, 32, 64)
_MERGE = la.KernelModule("merge.cuh", ())
_MERGING_BLOCKS, _FEWEST_ROWS = 1024, 4  # of the grid that merges what is cut
_KEPT_BYTES = 80  # a block's run and piece


@dataclass(frozen=True)
class Shape:
    """Heads and entries of a block, see ``attend.cuh``."""

    heads: int  # most heads, 16, 32 or 64
    tile: int  # entries
    warps: int  # that share them out
    resident: int  # blocks that a multiprocessor holds, by their registers
    source: str = "attend.cuh"  # of its kernel


WIDE, NARROW = Shape(64, 64, 8, 1), Shape(32, 32, 4, 2)
"""For GPUs whose blocks have 227 KiB of shared memory, and for all others or few heads."""

GROUPS = Shape(64, 64, 16, 1, "attend_groups.cuh")
"""Eight warps that decode for two warpgroups, see ``attend_groups.cuh``."""


def shape_of(queries: Tensor, variant: str = "warps") -> Shape:
    """What suits a GPU and a number of heads; an H200 for a tensor that is on none."""
    if variant == "groups":
        return GROUPS
    large = la.most_shared(queries) == la.LARGE
    return WIDE if large and queries.shape[1] > NARROW.heads else NARROW


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
    shape, blocks: of a block, and how many share all tokens' tiles out; None for ``shape_of`` and
    all that the GPU holds. Which they are changes outputs by no more than rounding.
    """
    heads, dims = queries.shape[1:]
    if dims != _DIMS:
        raise ConfigError(
            f"entries of {dims} channels cannot be attended to on a GPU: take {_DIMS}, or backend "
            "cpu."
        )
    if not len(slots):
        return ()
    shape = shape or shape_of(queries, variant)
    groups, most_tiles = -(-heads // shape.heads), _most_tiles(window, entries, shape)
    tile_heads, pieces = _tile_heads(heads, shape), len(slots) * groups
    module = _module(ring, entries, shape, tile_heads)
    shared = dict(module.macros)["DSV_SHARED_BYTES"]
    places = la.resident_blocks(queries, shared, shape.resident)
    blocks = blocks or min(places, pieces * most_tiles)
    sums, results, parts = _scratch(queries, 2 * blocks * tile_heads, pieces)
    arguments = (
        *(ring.pages, slots, tokens, *_others(entries)[0], queries, sinks, out, lse),
        *(sums, results, parts),
        *(len(slots), len(ring.pages), window, *_others(entries)[1]),
        *(heads, la.float_bits(scale)),
    )
    threads = shape.warps * la.WARP
    attend = la.Launch(module, "attend", (blocks, 1), threads, arguments, shared_bytes=shared)
    if blocks == 1 or most_tiles == 1:  # no token is cut
        return (attend,)
    rows = max(_FEWEST_ROWS, min(tile_heads, _MERGING_BLOCKS // pieces))
    merging = (sums, results, parts, sinks, out, lse, heads, tile_heads)
    return attend, la.Launch(_MERGE, "merge_parts", (pieces, rows), _DIMS // 4, merging)


def _tile_heads(heads: int, shape: Shape) -> int:
    """Heads of a block, padding included: as few as its products can have."""
    least = shape.heads if shape is GROUPS else min(heads, shape.heads)
    return next(size for size in _HEAD_TILES if size >= least)


def _most_tiles(window: int, entries: Entries | None, shape: Shape) -> int:
    return -(-window // shape.tile) + -(-_most_entries(entries) // shape.tile)


def _most_entries(entries: Entries | None) -> int:
    if entries is None:
        return 0
    if entries.indices is not None:
        return entries.indices.shape[1]
    return entries.table.shape[1] * entries.store.layout.entries


def _module(ring: PageStore, entries: Entries | None, shape: Shape, heads: int) -> la.KernelModule:
    layouts = {"WINDOW": ring.layout} | ({"MAIN": entries.store.layout} if entries else {})
    staged = max(_staged_bytes(layout) for layout in layouts.values())
    macros = {
        "DSV_HEADS": heads,
        "DSV_TILE": shape.tile,
        "DSV_COMPRESSED": int(entries is not None),
        "DSV_CHOSEN": int(entries is not None and entries.indices is not None),
    }
    macros |= _group_macros(staged) if shape is GROUPS else _warp_macros(shape, heads, staged)
    for part, layout in layouts.items():
        macros |= la.prefixed(part, la.format_macros(layout))
    return la.KernelModule.of(shape.source, macros)


def _staged_bytes(layout: PageLayout) -> int:
    """An entry as it is stored, in whole 16 bytes."""
    return -(-layout.format.entry_bytes // 16) * 16


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
