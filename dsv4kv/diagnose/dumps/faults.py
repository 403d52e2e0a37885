"""What is wrong with pages of a known record: which rows, and how it shows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose.dumps import phases
from dsv4kv.diagnose.dumps.reading import Bytes
from dsv4kv.diagnose.dumps.records import (
    SURE,
    Mask,
    Parsed,
    Record,
    fitting,
    have_nan,
    odd_peaks,
    odd_scales,
    odd_tails,
    parse,
)
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat

MEANINGS = {
    "nan": "values that are not a number",
    "odd scale": "a scale or its padding that no writer gives",
    "scale of other values": "a group whose largest code its scale does not explain",
    "odd rope": "RoPE channels of no everyday size",
    "other arrangement": "scales split from the rows where they belong into them, or so",
    "shifted page": "a page whose bytes begin elsewhere",
    "other bytes": "a page of something else",
    "repeated page": "a page that is another one's copy",
    "repeated row": "a row that is another one's copy",
    "zero row": "a row of zeros before one that is written",
    "zero tail": "rows of zeros at the end of what was written",
    "phase of another position": "RoPE turned as at another position: stale, or another row's",
    "page padding": "bytes after the last row that are not zero",
}
"""Every kind of fault."""

_Name = Callable[[str, Mask], Iterator["Fault"]]
"""Makes a fault of a kind and the rows that have it."""

_SHOWN_SHIFTS = 64  # bytes by which a page may be shifted, to either side


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        kind: A key of ``MEANINGS``.
        rows: How many rows, or pages, have it.
        page: The first: which page of the dump,
        entry: which row of it; None for all.
        position: Where in its request, in tokens; None where that is not known.
        detail: What more is known of the first.
    """

    kind: str
    rows: int
    page: int
    entry: int | None = None
    position: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Request:
    """Whose pages they are.

    Attributes:
        table: Pages in logical order.
        ratio: Tokens of an entry; 0 for a window of single tokens.
        first: Entry that the first row is.
        model: Whose RoPE it is.
        entries: That there should be; None where nobody said.
    """

    table: NDArray[np.int64]
    ratio: int
    first: int
    model: DSV4Config
    entries: int | None = None

    def positions(self, page_entries: int) -> NDArray[np.int64]:
        """Of every row in logical order, in tokens."""
        numbers = np.arange(len(self.table) * page_entries) + self.first
        return numbers * max(self.ratio, 1)


def find_faults(record: Record, pages: Bytes, request: Request | None = None) -> list[Fault]:
    """Every kind of fault of pages uint8[N, page bytes], the first of each named.

    With ``request`` rows are judged in its order, by position; else as they are stored.
    """
    order = request.table if request else np.arange(len(pages))
    found = list(_page_faults(record, pages, order))
    odd_pages = {page for each in found for page in each.pages}
    kept = np.array([page not in odd_pages for page in order])
    rows = list(_row_faults(record, pages, order, kept, request))
    return [each.fault for each in found] + rows


@dataclass(frozen=True)
class _OfPages:
    fault: Fault
    pages: tuple[int, ...]


def _page_faults(record: Record, pages: Bytes, order: NDArray[np.int64]) -> Iterator[_OfPages]:
    """Pages that are as a whole something else than they should be."""
    layout, kinds = record.layout, dict[str, list[tuple[int, str]]]()
    other = replace(layout, format=_other(record))
    for page in dict.fromkeys(order.tolist()):
        one = pages[page : page + 1]
        if not one.any() or _share(record, one) >= SURE:
            continue
        kind, detail = "other bytes", ""
        if record.layout.format.scale != "none" and len(one[0]) >= other.page_bytes:
            whole = one[:, : other.page_bytes]
            if _share(replace(record, layout=other), whole) >= SURE:
                kind = "other arrangement"
        if kind == "other bytes" and (shift := _shift(record, one)) is not None:
            kind, detail = "shifted page", f"by {shift:+} B"
        rows = parse(layout, one)
        if kind == "other bytes" and _rows_are_ours(record, rows):
            continue  # single faults in many rows: reported row by row
        kinds.setdefault(kind, []).append((page, detail))
    for kind, hits in kinds.items():
        (page, detail), numbers = hits[0], tuple(page for page, _ in hits)
        yield _OfPages(Fault(kind, len(hits), page, detail=detail), numbers)


def _other(record: Record) -> EntryFormat:
    entry = record.layout.format
    return replace(entry, scales_at="page_end" if entry.inline_scales else "row_end")


def _share(record: Record, pages: Bytes) -> float:
    parsed = parse(record.layout, pages)
    return (
        float(fitting(record.layout.format, parsed)[parsed.live].mean())
        if parsed.live.any()
        else 0.0
    )


def _rows_are_ours(record: Record, parsed: Parsed) -> bool:
    """Whether most rows break one rule at most: other bytes break several."""
    entry = record.layout.format
    broken = [have_nan, odd_scales, odd_peaks, odd_tails]
    counts = np.sum([each(entry, parsed) for each in broken], axis=0)
    return bool((counts[parsed.live] <= 1).mean() >= SURE)


def _shift(record: Record, page: Bytes) -> int | None:
    """By how many bytes a page's content is shifted."""
    for size in range(1, _SHOWN_SHIFTS + 1):
        for shift in (size, -size):
            if _share(record, np.roll(page, -shift, axis=1)) >= SURE:
                return shift
    return None


def _row_faults(
    record: Record,
    pages: Bytes,
    order: NDArray[np.int64],
    kept: Mask,
    request: Request | None,
) -> Iterator[Fault]:
    layout, entry = record.layout, record.layout.format
    if not kept.any():
        return
    numbers, chosen = order[kept], pages[order[kept]]
    parsed = parse(layout, chosen)
    places = np.repeat(numbers, layout.entries), np.tile(np.arange(layout.entries), len(numbers))
    positions = None
    if request:
        whole = request.positions(layout.entries).reshape(len(order), -1)
        positions = whole[kept].reshape(-1)

    def fault(kind: str, mask: Mask) -> Iterator[Fault]:
        hits = np.flatnonzero(mask)
        if len(hits):
            first = hits[0]
            at = None if positions is None else int(positions[first])
            yield Fault(kind, len(hits), int(places[0][first]), int(places[1][first]), at)

    nan = have_nan(entry, parsed) & parsed.live
    scales = odd_scales(entry, parsed) & parsed.live
    yield from fault("nan", nan)
    yield from fault("odd scale", scales)
    yield from fault(
        "scale of other values", odd_peaks(entry, parsed) & parsed.live & ~nan & ~scales
    )
    yield from fault("odd rope", odd_tails(entry, parsed) & parsed.live & ~nan)
    yield from _repeats(layout.entries, chosen, parsed, fault)
    yield from _zeros(parsed, fault, request, layout.entries)
    if layout.padding_bytes and not entry.inline_scales:
        padded = chosen[:, layout.page_bytes - layout.padding_bytes :].any(axis=1)
        yield from fault("page padding", np.repeat(padded, layout.entries) & _first(places[1]))
    if request and entry.tail_dims and positions is not None:
        yield from _phases(parsed, positions, request, nan, fault)


def _first(entries: NDArray[np.int64]) -> Mask:
    first: Mask = entries == 0
    return first


def _repeats(entries: int, chosen: Bytes, parsed: Parsed, fault: _Name) -> Iterator[Fault]:
    """Copies, each but the first; of whole pages, then of rows in pages that are none."""
    whole = parsed.live.reshape(-1, entries).any(axis=1)
    copies = _copies(chosen) & whole
    of_pages = np.repeat(copies, entries)
    starts = np.zeros(len(of_pages), bool)
    starts[::entries] = True
    yield from fault("repeated page", of_pages & starts)
    rows = np.concatenate([parsed.codes, parsed.scales, parsed.tail], axis=1)
    yield from fault("repeated row", _copies(rows) & parsed.live & ~of_pages)


def _copies(rows: Bytes) -> Mask:
    """Rows that an earlier one equals."""
    seen: set[bytes] = set()
    found = np.zeros(len(rows), bool)
    for i, row in enumerate(rows):
        key = row.tobytes()
        found[i] = key in seen
        seen.add(key)
    return found


def _zeros(parsed: Parsed, fault: _Name, request: Request | None, entries: int) -> Iterator[Fault]:
    """Rows that nobody wrote: between those that are, and at the end of what there should be."""
    live = parsed.live
    if not live.any():
        return
    after = np.zeros(len(live), bool)  # a later row of the page, or of the request, is written
    if request:
        after[: np.flatnonzero(live)[-1]] = True
    else:
        pages = live.reshape(-1, entries)
        after = (np.cumsum(pages[:, ::-1], axis=1)[:, ::-1] > 0).reshape(-1)
    yield from fault("zero row", ~live & after)
    if request and request.entries is not None:
        there = np.arange(len(live)) < request.entries
        yield from fault("zero tail", ~live & ~after & there)


def _phases(
    parsed: Parsed, positions: NDArray[np.int64], request: Request, nan: Mask, fault: _Name
) -> Iterator[Fault]:
    good = np.flatnonzero(parsed.live & ~nan)
    if len(good) < 8:
        return
    speeds = phases.frequencies(request.model, request.ratio)
    odd = phases.odd_phases(phases.pairs_of(parsed.tail[good]), positions[good], speeds)
    if odd is None:
        return
    mask = np.zeros(len(parsed.live), bool)
    mask[good[odd]] = True
    yield from fault("phase of another position", mask)
