"""Rows of a cache's families, and the stretches of bytes that hold them.

A row is what one entry, or one position of a ring, has in a page: its number counts from the
request's beginning. Of a block-split page a row has two parts, in areas of their own, so pages of
another size hold other stretches of both.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsv4kv.cache.blocks import Ids
from dsv4kv.model.plan import Family, Kept

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
    """Where a family's rows are in one layer."""
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


@dataclass(frozen=True)
class Descriptors:
    """Stretches of bytes: int64[n] each, of one layer's pool here and there."""

    source: Ids
    target: Ids
    lengths: Ids

    def __len__(self) -> int:
        return len(self.lengths)


def describe(
    source: Geometry, source_ids: Ids, target: Geometry, target_ids: Ids, rows: range
) -> Descriptors:
    """Stretches of one layer that hold ``rows``, as they come: a page's, page after page.

    Whole pages of one size are one stretch each, padding included, so that neighbours touch.
    """
    first, last = _cut(rows, source.rows, target.rows)
    starts, targets, lengths = list[Ids](), list[Ids](), list[Ids]()
    whole = np.zeros(len(first), dtype=bool)
    if source == target:
        whole = last - first == source.rows
        starts.append(_pages(source, source_ids, first[whole]))
        targets.append(_pages(target, target_ids, first[whole]))
        lengths.append(np.full(int(whole.sum()), source.page_bytes))
    first, last = first[~whole], last[~whole]
    for mine, theirs in zip(source.areas, target.areas, strict=True):
        starts.append(_places(source, mine, source_ids, first))
        targets.append(_places(target, theirs, target_ids, first))
        lengths.append((last - first) * mine.row_bytes)
    return Descriptors(*map(np.concatenate, (starts, targets, lengths)))


def coalesce(each: Descriptors) -> Descriptors:
    """Neighbours on both sides as one stretch, in the order of the source."""
    order = np.argsort(each.source, kind="stable")
    source, target, lengths = each.source[order], each.target[order], each.lengths[order]
    parted = (np.diff(source) != lengths[:-1]) | (np.diff(target) != lengths[:-1])
    heads = np.flatnonzero(np.concatenate([[True], parted])[: len(source)])
    merged = np.add.reduceat(lengths, heads) if len(heads) else lengths
    return Descriptors(source[heads], target[heads], merged)


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
