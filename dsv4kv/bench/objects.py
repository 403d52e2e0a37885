"""The bytes of a live cache as rows and objects of families: gathered, put back, compared.

On a CPU the pools are read and written where they are, states looked at as bytes. On a GPU one
launch gathers all layers of a family into a buffer, which is copied as a whole to pinned memory of
the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.model.plan import Family, Kept, families_in
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.launches.pages import Way, plan_objects, pool_table

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Area:
    """Parts of rows next to each other: of row r at ``start + r * row_bytes``."""

    start: int
    row_bytes: int


@dataclass(frozen=True)
class Geometry:
    """Where rows are in a page, or in a slot's ring: row r is at r modulo ``rows`` there."""

    rows: int
    page_bytes: int  # from one page to the next
    areas: tuple[Area, ...]
    ring: bool


def geometry_of(family: Family) -> Geometry:
    ring = family.kept is not Kept.PAGES
    if family.layout is not None:
        page = family.layout.format
        areas = [Area(0, page.data_row_bytes)]
        if page.scale_row_bytes:
            scales = Area(family.layout.scale_start, page.scale_row_bytes)
            areas.append(scales)
        rows = family.layout.entries
    elif len(family.state_shape) == 3:
        parts, rows, channels = family.state_shape
        size = channels * _FLOAT_BYTES
        areas = [Area(part * rows * size, size) for part in range(parts)]
    else:  # a running softmax: the whole state is one row
        rows, areas = 1, [Area(0, family.piece_bytes)]
    return Geometry(rows, family.piece_bytes, tuple(areas), ring)


def rows_needed(family: Family, tokens: int, window_tokens: int) -> range:
    """Rows that a request needs to go on after ``tokens`` tokens."""
    if family.kept is Kept.PAGES:
        return range(tokens // family.ratio)
    if family.part == "window":
        return range(max(0, tokens - window_tokens), tokens)
    open_from = tokens // family.ratio * family.ratio
    if len(family.state_shape) == 2:
        return range(int(tokens > open_from))
    if family.kept is Kept.WINDOW:  # groups overlap: the one before is pooled once more
        open_from = max(0, open_from - family.ratio)
    return range(open_from, tokens)


def describe(
    source: Geometry, source_ids: Ids, target: Geometry, target_ids: Ids, rows: range
) -> Ids:
    """Stretches of one layer that hold ``rows``, as they come: a page's, page after page.

    int64[n, 3] of source and target in the layer's pools, and bytes. Whole pages of one size are
    one stretch each, padding included, so that neighbours touch.
    """
    first, last = _cut(rows, source.rows, target.rows)
    whole = (last - first == source.rows) & (source == target)
    pages = first[whole]
    both = _pages(source, source_ids, pages), _pages(target, target_ids, pages)
    found = [(*both, np.full(len(pages), source.page_bytes))]
    first, last = first[~whole], last[~whole]
    for mine, theirs in zip(source.areas, target.areas, strict=True):
        here = _places(source, mine, source_ids, first)
        there = _places(target, theirs, target_ids, first)
        found.append((here, there, (last - first) * mine.row_bytes))
    return np.stack([np.concatenate(each) for each in zip(*found, strict=True)], axis=1)


def coalesce(stretches: Ids) -> Ids:
    """Neighbours on both sides as one stretch, in the order of the source: int64[n, 3]."""
    ordered = stretches[np.argsort(stretches[:, 0], kind="stable")]
    parted = (np.diff(ordered[:, :2], axis=0) != ordered[:-1, 2:]).any(axis=1)
    heads = np.flatnonzero(np.concatenate([[True], parted])[: len(ordered)])
    merged = ordered[heads]
    if len(heads):
        merged[:, 2] = np.add.reduceat(ordered[:, 2], heads)
    return merged


def stretches(geometry: Geometry, ids: Ids, rows: range) -> Iterator[slice]:
    """Where rows are in a layer's pool: area by area, in their order, whatever the page size."""
    first, last = _cut(rows, geometry.rows)
    for area in geometry.areas:
        starts = _places(geometry, area, ids, first)
        ends = starts + (last - first) * area.row_bytes
        yield from map(slice, starts.tolist(), ends.tolist())


def _cut(rows: range, *sizes: int) -> tuple[Ids, Ids]:
    """First rows and ends of the pieces between the pages' ends."""
    if not rows:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    ends = [np.arange(rows.start // size * size, rows.stop, size) for size in sizes]
    cuts = np.unique(np.concatenate([[rows.start], *ends]).astype(np.int64))
    first = cuts[cuts >= rows.start]
    return first, np.append(first[1:], rows.stop)


def _pages(geometry: Geometry, ids: Ids, rows: Ids) -> Ids:
    numbers = np.zeros_like(rows) if geometry.ring else rows // geometry.rows
    return ids[numbers] * geometry.page_bytes


def _places(geometry: Geometry, area: Area, ids: Ids, rows: Ids) -> Ids:
    return _pages(geometry, ids, rows) + area.start + rows % geometry.rows * area.row_bytes


Objects = NDArray[np.uint8]
"""uint8[n, layers, piece_bytes]: n objects of a family, each contiguous."""


class CacheBytes:
    """Objects of the families of a cache that has data, by the families' names."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.families = {family.name: family for family in families_in(manager.plan.schemas)}
        # uint8[blocks or slots, piece_bytes] of every layer: the cache's memory
        self.pools = {name: _pools(manager, each) for name, each in self.families.items()}
        self.by_launches = manager.device.type != "cpu"
        self._buffer = torch.empty(0, dtype=torch.uint8, device=manager.device)

    def new_objects(self, family: Family, count: int) -> Objects:
        """Room on the host for objects, pinned for a GPU."""
        size, pinned = count * family.object_bytes, self.manager.device.type == "cuda"
        room: Objects = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).numpy()
        return room.reshape(count, *family.object_shape)

    def units(self, family: Family, slot: int, tokens: int) -> Ids:
        """Where a request's objects are: int64[layers, n] blocks, or its slot n times."""
        count = family.objects(tokens)
        if family.kept is not Kept.PAGES:
            return np.full((len(family.layers), count), slot)
        rows = []
        for layer in family.layers:
            table = next(t for t in self.manager.tables if layer in t.group.layers)
            rows.append(table.blocks[table.group.lane_of(layer), slot, :count])
        return np.array(rows, dtype=np.int64)

    def take(self, family: Family, ids: Ids, into: Objects) -> None:
        """Gather objects from the cache: ``ids`` int64[layers, n], as ``units`` gives them."""
        if self.by_launches:
            self._move("take", family, ids, into)
        else:
            for layer, pool in enumerate(self.pools[family.name]):
                into[:, layer] = pool.numpy()[ids[layer]]

    def put(self, family: Family, ids: Ids, data: Objects) -> None:
        """Put objects into the cache: the inverse of ``take``."""
        if self.by_launches:
            self._move("put", family, ids, data)
        else:
            for layer, pool in enumerate(self.pools[family.name]):
                pool.numpy()[ids[layer]] = data[:, layer]

    def _move(self, way: Way, family: Family, ids: Ids, objects: Objects) -> None:
        """Move objects through a buffer next to the cache; one thread at a time."""
        assert objects.flags.c_contiguous
        host, device = torch.from_numpy(objects.reshape(-1)), self.manager.device
        if not len(host):
            return
        numbers = torch.from_numpy(np.ascontiguousarray(ids)).to(device)
        if len(self._buffer) < len(host):
            self._buffer = torch.empty_like(host, device=device)
        table, buffer = pool_table(self.pools[family.name]), self._buffer[: len(host)]
        sizes = family.piece_bytes, family.object_bytes
        launch = plan_objects(way, table, numbers, buffer, *sizes)
        if way == "take":
            run(launch)
            host.copy_(buffer, non_blocking=True)
        else:
            buffer.copy_(host, non_blocking=True)
            run(launch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _pools(manager: KVCacheManager, family: Family) -> list[Tensor]:
    """Pool of every layer as uint8[blocks or slots, piece_bytes], sharing its memory."""
    if family.part in ("main", "indexer"):
        stores = [getattr(manager.pools[layer], family.part) for layer in family.layers]
        return [store.pages for store in stores]
    by_layer = dict[int, Tensor]()
    for attn, states in manager.states.items():
        schemas = [schema for schema in manager.plan.schemas if schema.layer.attn is attn]
        if family.part == "window":
            having = [schema for schema in schemas if schema.window]
            pieces = [ring.pages for ring in states.windows]
        else:
            having = [schema for schema in schemas if getattr(schema, f"{family.part}_shape")]
            state = getattr(states, family.part)
            pieces = [] if state is None else [x.flatten(1).view(torch.uint8) for x in state]
        by_layer |= {s.layer.layer_idx: x for s, x in zip(having, pieces, strict=True)}
    return [by_layer[layer] for layer in family.layers]


def differences(
    left: CacheBytes, left_slot: int, right: CacheBytes, right_slot: int, tokens: int
) -> list[str]:
    """A sentence for every family in which two requests of one prompt do not hold the same bits.

    Compared is what the next tokens can read, by its logical position: entries that are complete,
    the window, and of a state the rows that a group still pools. The rest of pages and rings is
    padding, or left from earlier tokens. Both requests have ``tokens`` tokens.
    """
    found, window_tokens = [], left.manager.plan.config.window_tokens
    for family in left.families.values():
        count, geometry = family.objects(tokens), geometry_of(family)
        both = [np.zeros((count, *family.object_shape), dtype=np.uint8) for _ in range(2)]
        for cache, slot, data in ((left, left_slot, both[0]), (right, right_slot, both[1])):
            cache.take(family, cache.units(family, slot, tokens), data)
        alive = np.zeros(count * family.piece_bytes, dtype=np.bool_)
        for part in stretches(
            geometry, np.arange(count), rows_needed(family, tokens, window_tokens)
        ):
            alive[part] = True
        differ = (both[0] != both[1]) & alive.reshape(count, 1, family.piece_bytes)
        wrong = np.argwhere(differ.any(axis=2))
        if len(wrong):
            number, layer = wrong[0].tolist()
            found.append(
                f"{family.name}: object {number} of layer {family.layers[layer]} differs after "
                f"{tokens} tokens, and {len(wrong) - 1} other pieces."
            )
    return found
