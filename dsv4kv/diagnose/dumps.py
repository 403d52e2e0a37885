"""What is wrong with pages of a known record, and where two dumps of one content part."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose import records
from dsv4kv.diagnose.records import Bytes, Mask, Parsed, Record
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config, inverse_frequencies
from dsv4kv.model.formats import EntryFormat

_AGREED = 0.25  # rows of random content agree to 1 / √rows; from here on it is a direction
_FAST = 0.02  # radians per position of the pairs that are looked at: slower ones turn alike
_FAR = 8  # standard deviations

FAULTS = {
    "nan": "values that are not a number",
    "odd scale": "a scale or its padding that no writer gives",
    "scale of other values": "a group whose largest code its scale does not explain",
    "odd rope": "RoPE channels of no everyday size",
    "other bytes": "a page of something else",
    "repeated page": "a page that is another one's copy",
    "repeated row": "a row that is another one's copy",
    "zero row": "a row of zeros before one that is written",
    "phase of another position": "RoPE turned as at another position: stale, or another row's",
    "page padding": "bytes after the last row that are not zero",
}
"""Every kind of fault."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    kind: str  # a key of ``FAULTS``
    rows: int  # how many rows, or pages, have it
    page: int  # the first: which page of the dump,
    entry: int | None = None  # which row of it; None for all
    position: int | None = None  # where in its request, in tokens; None where that is not known


@dataclass(frozen=True)
class Request:
    """The request that the pages belong to."""

    model: DSV4Config  # whose RoPE it is
    ratio: int | None = None  # tokens of an entry, 0 for a window; None where it is not known


def find_faults(
    record: Record, pages: Bytes, order: NDArray[np.int64], request: Request | None = None
) -> list[Fault]:
    """Every kind of fault of pages uint8[N, page bytes], the first of each named.

    ``order``: pages that are looked at; with ``request`` they are its own, and rows are judged by
    position.
    """
    other = _other_pages(record, pages, order)
    found = [Fault("other bytes", len(other), other[0])] if other else []
    kept = ~np.isin(order, other)
    if not kept.any():
        return found
    entries, positions = record.layout.entries, None
    if request:
        numbers = np.arange(len(order) * entries).reshape(len(order), -1)
        positions = numbers[kept].reshape(-1) * max(request.ratio or 0, 1)
    for kind, mask in _odd_rows(record, pages[order[kept]], request, positions).items():
        if mask.any():
            first = int(np.argmax(mask))
            page, entry = int(order[kept][first // entries]), first % entries
            at = None if positions is None else int(positions[first])
            found.append(Fault(kind, int(mask.sum()), page, entry, at))
    return found


def _other_pages(record: Record, pages: Bytes, order: NDArray[np.int64]) -> list[int]:
    """Pages whose rows do not fit the record; single faults in many rows are left to the rows."""
    found = list[int]()
    for page in dict.fromkeys(order.tolist()):
        parsed = records.parse(record.layout, pages[page : page + 1])
        counts = records.oddities(record.layout.format, parsed).sum(axis=0)[parsed.live]
        if len(counts) and (counts <= 1).mean() < records.SURE:
            found.append(page)
    return found


def _odd_rows(
    record: Record, chosen: Bytes, request: Request | None, positions: NDArray[np.int64] | None
) -> dict[str, Mask]:
    layout, entry = record.layout, record.layout.format
    parsed = records.parse(layout, chosen)
    live, by_page = parsed.live, parsed.live.reshape(len(chosen), -1)
    first = np.arange(len(live)) % layout.entries == 0
    nan, scales, peaks, tails = records.oddities(entry, parsed) & live
    copies = np.repeat(_copies(chosen) & by_page.any(axis=1), layout.entries)
    # a later row of the page, or of the request, is written
    after = np.asarray(np.cumsum(by_page[:, ::-1], axis=1)[:, ::-1] > 0).reshape(-1)
    if request:
        after = np.arange(len(live)) < np.flatnonzero(live)[-1:].sum()
    masks = {
        "nan": nan,
        "odd scale": scales,
        "scale of other values": peaks & ~nan & ~scales,
        "odd rope": tails & ~nan,
        "repeated page": copies & first,
        "repeated row": _copies(_whole(parsed)) & live & ~copies,
        "zero row": ~live & after,
    }
    if layout.padding_bytes and not entry.inline_scales:
        padded = chosen[:, layout.page_bytes - layout.padding_bytes :].any(axis=1)
        masks["page padding"] = np.repeat(padded, layout.entries) & first
    good = np.flatnonzero(live & ~nan)
    if request and positions is not None and entry.tail_dims and len(good) >= 8:
        odd = _odd_phases(request, parsed.tail[good], positions[good])
        masks["phase of another position"] = np.isin(np.arange(len(live)), good[odd])
    return masks


def _whole(parsed: Parsed) -> Bytes:
    return np.concatenate([parsed.codes, parsed.scales, parsed.tail], axis=1)


def _copies(rows: Bytes) -> Mask:
    seen: set[bytes] = set()
    found = np.zeros(len(rows), bool)
    for i, row in enumerate(rows):
        key = row.tobytes()
        found[i] = key in seen
        seen.add(key)
    return found


def _odd_phases(request: Request, tail: Bytes, positions: NDArray[np.int64]) -> Mask:
    """Rows turned as at another position: bool[n]; none where rows share no direction."""
    speeds = np.array(inverse_frequencies(request.model, request.ratio or 0, "float64"))
    words = np.ascontiguousarray(tail).view(np.uint16).astype(np.uint32) << 16
    values = words.view(np.float32).astype(np.float64)
    pairs, fast = values[:, 0::2] + 1j * values[:, 1::2], speeds >= _FAST
    still = pairs[:, fast] * np.exp(-1j * positions[:, None] * speeds[fast])
    unit = still / np.maximum(np.abs(still).sum(axis=1, keepdims=True), 1e-30)
    common = np.median(unit.real, axis=0) + 1j * np.median(unit.imag, axis=0)
    size = np.linalg.norm(unit, axis=1)
    along = (unit @ np.conj(common)).real / np.maximum(size * np.linalg.norm(common), 1e-30)
    usual = float(np.median(along))
    spread = 1.4826 * float(np.median(np.abs(along - usual)))
    if usual < max(_AGREED, 4 / np.sqrt(len(pairs)), 4 * spread):
        return np.zeros(len(pairs), bool)
    return np.asarray(along < max(usual / 2, usual - _FAR * spread))


DIFFERENCES = {
    "one step": "values a quantisation step apart: rounding",
    "scale": "the scale of a group, its values alike",
    "rope": "RoPE channels alone, as turned at another position",
    "missing": "a row of zeros",
    "elsewhere": "a row that the other dump has at another position",
    "other content": "a row of other content",
}
"""Every kind of difference, the harmless one first."""

_MOST_STEPS = {"bf16": 2}  # numbers that rounding may set apart; 1 of other formats


@dataclass(frozen=True)
class Difference:
    """One kind of difference."""

    kind: str  # a key of ``DIFFERENCES``
    rows: int  # how many rows differ so
    entry: int  # the first: logical entry of the request,
    position: int  # and its position in tokens
    detail: str = ""  # what more is known of the first


@dataclass(frozen=True)
class Comparison:
    """What two dumps share."""

    rows: int  # logical rows that both have
    equal: int  # bit for bit
    differences: list[Difference]  # by kind, in the order of the first row
    alone: tuple[int, int] = (0, 0)  # rows of either behind the last of the other


@dataclass(frozen=True)
class Inspection:
    """One dump."""

    dump: records.Dump
    record: Record | None  # what it holds; None where that is not recognised
    tried: list[records.Candidate]  # the best first
    unmarked: list[str]  # rows without a mark that it may be
    pages: Bytes  # uint8[N, page bytes]; all bytes as one page where the record is not known
    table: NDArray[np.int64]  # pages in the order that they are looked at
    faults: list[Fault]  # of the record's rows


def inspect(
    path: Path,
    request: Request,
    *,
    tensor: str | None = None,
    format_name: str | None = None,
    entries: int | None = None,
    table_file: Path | None = None,
) -> Inspection:
    """Read a dump, recognise its record, and find its faults; ``TraceError``, ``ConfigError``.

    ``request``: whose pages they are, as far as it is known; ``table_file`` has them in logical
    order. ``format_name`` and ``entries`` of a page: None to find out.
    """
    dump = records.read_dump(path, tensor)
    tried = records.candidates(dump, entries, format_name)
    names = sorted({name for name, *_ in records.known_records()})
    if format_name and format_name not in names:
        raise ConfigError(
            f"--format {format_name}: there is no such record: give {', '.join(names)}."
        )
    if format_name and not tried:
        raise ConfigError(
            f"--format {format_name}: {dump.title} is {len(dump.data):,} B, which are no whole "
            "pages of it: say --entries, or leave --format out."
        )
    best = tried[0] if format_name else records.recognise(tried)
    if best is None:
        pages = dump.data[None]
        return Inspection(
            dump, None, tried, records.unmarked(dump), pages, np.zeros(0, np.int64), []
        )
    record = best.record
    pages = dump.data.reshape(-1, record.layout.page_bytes)
    table = records.read_table(table_file, len(pages)) if table_file else np.arange(len(pages))
    known = request if table_file or request.ratio is not None else None
    found = find_faults(record, pages, table, known)
    return Inspection(dump, record, tried, [], pages, table, found)


def compare(one: Inspection, other: Inspection, request: Request) -> Comparison:
    """Two dumps by logical position; ``ConfigError`` if they hold different or unknown records."""
    held, rows = [], []
    for each in (one, other):
        if each.record is None:
            raise ConfigError(
                f"{each.dump.title} is not recognised: name its record with --format."
            )
        held.append(each.record)
        rows.append(records.parse(each.record.layout, each.pages[each.table]))
    kinds = [(record.name, record.layout.format.entry_bytes) for record in held]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"{one.dump.title} holds {kinds[0][0]} and {other.dump.title} {kinds[1][0]}: rows of "
            "two formats are not compared byte by byte."
        )
    left, right = rows
    count = min(len(left.live), len(right.live))
    ours, theirs = _whole(left)[:count], _whole(right)[:count]
    alike = (ours == theirs).all(axis=1)
    used = left.live[:count] | right.live[:count]
    names = _name_differences(held[0].layout.format, left, right, count)
    known = {row.tobytes(): i for i, row in enumerate(ours) if left.live[i]}
    hits: dict[str, list[tuple[int, str]]] = {}
    for i in np.flatnonzero(~alike & used).tolist():
        kind, detail = names[i], ""
        place = known.get(theirs[i].tobytes()) if kind == "other content" else None
        if place is not None:
            kind, detail = "elsewhere", f"it is entry {place:,} of the first"
        hits.setdefault(kind, []).append((i, detail))
    tokens = max(request.ratio or 0, 1)
    differences = [  # in the order of their first rows
        Difference(kind, len(found), found[0][0], found[0][0] * tokens, found[0][1])
        for kind, found in hits.items()
    ]
    alone = int(left.live[count:].sum()), int(right.live[count:].sum())
    return Comparison(int(used.sum()), int((alike & used).sum()), differences, alone)


def _name_differences(entry: EntryFormat, one: Parsed, other: Parsed, count: int) -> list[str]:
    """What sets each of the first rows apart, as if it did."""
    codes, scales, tails = (
        (mine[:count] == theirs[:count]).all(axis=1)
        for mine, theirs in (
            (one.codes, other.codes), (one.scales, other.scales), (one.tail, other.tail)
        )
    )  # fmt: skip
    numbers = []  # codes in the order of what they stand for
    for each in (one, other):
        sizes, signs = records.split_signs(entry, each.codes[:count])
        numbers.append(np.where(signs > 0, -sizes.astype(np.int32), sizes))
    steps = _MOST_STEPS.get(entry.value, 1)
    near = (np.abs(numbers[0] - numbers[1]) <= steps).all(axis=1)
    missing = ~other.live[:count] | ~one.live[:count]
    conditions = [missing, codes & scales & ~tails, codes & ~scales, near & scales]
    said = ["missing", "rope", "scale", "one step"]
    return [str(kind) for kind in np.select(conditions, said, "other content")]
