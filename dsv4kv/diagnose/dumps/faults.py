"""What is wrong with pages of a known record, and where two dumps of one content part."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose.dumps.reading import Bytes, Dump, read_dump, read_table
from dsv4kv.diagnose.dumps.records import (
    SURE,
    Candidate,
    Mask,
    Parsed,
    Record,
    candidates,
    code_sizes,
    fitting,
    have_nan,
    known_records,
    odd_peaks,
    odd_scales,
    odd_tails,
    parse,
    recognise,
    unmarked,
)
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config, inverse_frequencies
from dsv4kv.model.formats import EntryFormat

Pairs = NDArray[np.complex128]

_AGREED = 0.25
"""Rows of random content agree to 1 / √rows; from here on it is a request's own direction."""

_FAST = 0.02
"""Radians per position of the pairs that are looked at: slower ones turn alike everywhere."""

_FAR = 8  # standard deviations


def pairs_of(tail: Bytes) -> Pairs:
    """Pairs of bf16 channels as complex numbers: [n, pairs]."""
    words = np.ascontiguousarray(tail).view(np.uint16).astype(np.uint32) << 16
    values = words.view(np.float32).astype(np.float64)
    return values[:, 0::2] + 1j * values[:, 1::2]


def odd_phases(
    pairs: Pairs, positions: NDArray[np.int64], speeds: NDArray[np.float64]
) -> NDArray[np.bool_] | None:
    """Rows turned as at another position: bool[n].

    None where rows share no direction, and nothing follows.
    """
    fast = speeds >= _FAST
    still = pairs[:, fast] * np.exp(-1j * positions[:, None] * speeds[fast])
    unit = still / np.maximum(np.abs(still).sum(axis=1, keepdims=True), 1e-30)
    common = np.median(unit.real, axis=0) + 1j * np.median(unit.imag, axis=0)
    size = np.linalg.norm(unit, axis=1)
    along = (unit @ np.conj(common)).real / np.maximum(size * np.linalg.norm(common), 1e-30)
    usual = float(np.median(along))
    spread = 1.4826 * float(np.median(np.abs(along - usual)))
    if usual < max(_AGREED, 4 / np.sqrt(len(pairs)), 4 * spread):
        return None
    return np.asarray(along < max(usual / 2, usual - _FAR * spread))


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

    @property
    def speeds(self) -> NDArray[np.float64]:
        """Radians per position of each pair."""
        return np.array(inverse_frequencies(self.model, self.ratio or 0, "float64"))


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
    entries, chosen, positions = record.layout.entries, pages[order[kept]], None
    if request:
        numbers = np.arange(len(order) * entries)
        whole = (numbers * max(request.ratio or 0, 1)).reshape(len(order), -1)
        positions = whole[kept].reshape(-1)
    for kind, mask in _odd_rows(record, chosen, request, positions).items():
        if mask.any():
            first = int(np.argmax(mask))
            page, entry = int(order[kept][first // entries]), first % entries
            at = None if positions is None else int(positions[first])
            found.append(Fault(kind, int(mask.sum()), page, entry, at))
    return found


def _other_pages(record: Record, pages: Bytes, order: NDArray[np.int64]) -> list[int]:
    """Pages whose rows do not fit the record; single faults in many rows are left to the rows."""
    entry, found = record.layout.format, list[int]()
    for page in dict.fromkeys(order.tolist()):
        one = pages[page : page + 1]
        if not one.any() or _share(record, one) >= SURE:
            continue
        parsed = parse(record.layout, one)
        broken = [have_nan, odd_scales, odd_peaks, odd_tails]
        counts = np.sum([each(entry, parsed) for each in broken], axis=0)
        if (counts[parsed.live] <= 1).mean() < SURE:
            found.append(page)
    return found


def _share(record: Record, pages: Bytes) -> float:
    parsed = parse(record.layout, pages)
    fits = fitting(record.layout.format, parsed)[parsed.live]
    return float(fits.mean()) if len(fits) else 0.0


def _odd_rows(
    record: Record, chosen: Bytes, request: Request | None, positions: NDArray[np.int64] | None
) -> dict[str, Mask]:
    layout, entry = record.layout, record.layout.format
    parsed = parse(layout, chosen)
    live, by_page = parsed.live, parsed.live.reshape(len(chosen), -1)
    first = np.arange(len(live)) % layout.entries == 0
    nan, scales = have_nan(entry, parsed) & live, odd_scales(entry, parsed) & live
    copies = np.repeat(_copies(chosen) & by_page.any(axis=1), layout.entries)
    # a later row of the page, or of the request, is written
    after = np.asarray(np.cumsum(by_page[:, ::-1], axis=1)[:, ::-1] > 0).reshape(-1)
    if request:
        after = np.arange(len(live)) < np.flatnonzero(live)[-1:].sum()
    masks = {
        "nan": nan,
        "odd scale": scales,
        "scale of other values": odd_peaks(entry, parsed) & live & ~nan & ~scales,
        "odd rope": odd_tails(entry, parsed) & live & ~nan,
        "repeated page": copies & first,
        "repeated row": _copies(parsed.whole) & live & ~copies,
        "zero row": ~live & after,
    }
    if layout.padding_bytes and not entry.inline_scales:
        padded = chosen[:, layout.page_bytes - layout.padding_bytes :].any(axis=1)
        masks["page padding"] = np.repeat(padded, layout.entries) & first
    good = np.flatnonzero(live & ~nan)
    if request and positions is not None and entry.tail_dims and len(good) >= 8:
        odd = odd_phases(pairs_of(parsed.tail[good]), positions[good], request.speeds)
        if odd is not None:
            masks["phase of another position"] = np.isin(np.arange(len(live)), good[odd])
    return masks


def _copies(rows: Bytes) -> Mask:
    seen: set[bytes] = set()
    found = np.zeros(len(rows), bool)
    for i, row in enumerate(rows):
        key = row.tobytes()
        found[i] = key in seen
        seen.add(key)
    return found


DIFFERENCES = {
    "one step": "values a quantisation step apart: rounding",
    "scale": "the scale of a group, its values alike",
    "rope": "RoPE channels alone, as turned at another position",
    "missing": "a row of zeros",
    "elsewhere": "a row that the other dump has at another position",
    "other content": "a row of other content",
}
"""Every kind of difference, the harmless one first."""

MOST_STEPS = 2
"""Numbers of bf16 that rounding may set apart."""


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
    alone: tuple[int, int] = (0, 0)
    """Rows that the first and the second hold behind the last of the other."""


def _names(entry: EntryFormat, one: Parsed, other: Parsed, count: int) -> list[str]:
    """What sets each row apart, as if it did."""
    codes = (one.codes[:count] == other.codes[:count]).all(axis=1)
    scales = (one.scales[:count] == other.scales[:count]).all(axis=1)
    tails = (one.tail[:count] == other.tail[:count]).all(axis=1)
    near = _near(entry, one.codes[:count], other.codes[:count])
    missing = ~other.live[:count] | ~one.live[:count]
    conditions = [missing, codes & scales & ~tails, codes & ~scales, near & scales]
    said = ["missing", "rope", "scale", "one step"]
    return [str(kind) for kind in np.select(conditions, said, "other content")]


def _near(entry: EntryFormat, one: Bytes, other: Bytes) -> Mask:
    if entry.value == "bf16":
        a, b = (np.ascontiguousarray(x).view(np.int16).astype(np.int32) for x in (one, other))
        apart = np.abs(_ordered(a) - _ordered(b))
        return np.asarray((apart <= MOST_STEPS).all(axis=1))
    first, second = (_values(entry, each) for each in (one, other))
    return np.asarray((np.abs(first - second) <= 1).all(axis=1))


def _values(entry: EntryFormat, codes: Bytes) -> NDArray[np.int32]:
    """Codes as numbers in their order: int32[n, value dims]."""
    sizes, signs = code_sizes(entry, codes).astype(np.int32), codes >> 7
    if entry.value != "e4m3":
        signs = np.stack([codes >> 3 & 1, codes >> 7], axis=-1).reshape(len(codes), -1)
    return np.where(signs > 0, -sizes, sizes)


def _ordered(words: NDArray[np.int32]) -> NDArray[np.int32]:
    size = words & 0x7FFF
    return np.where(words < 0, -size, size)


@dataclass(frozen=True)
class Inspection:
    """One dump."""

    dump: Dump  # its bytes
    record: Record | None  # what it holds; None where that is not recognised
    tried: list[Candidate]  # candidates, the best first
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
    dump = read_dump(path, tensor)
    tried = candidates(dump, entries, format_name)
    names = sorted({name for name, *_ in known_records()})
    if format_name and format_name not in names:
        raise ConfigError(
            f"--format {format_name}: there is no such record: give {', '.join(names)}."
        )
    if format_name and not tried:
        raise ConfigError(
            f"--format {format_name}: {dump.title} is {len(dump.data):,} B, which are no whole "
            "pages of it: say --entries, or leave --format out."
        )
    best = tried[0] if format_name else recognise(tried)
    if best is None:
        pages = dump.data[None]
        return Inspection(dump, None, tried, unmarked(dump), pages, np.zeros(0, np.int64), [])
    record = best.record
    pages = dump.data.reshape(-1, record.layout.page_bytes)
    table = read_table(table_file, len(pages)) if table_file else np.arange(len(pages))
    known = request if table_file or request.ratio is not None else None
    found = find_faults(record, pages, table, known)
    return Inspection(dump, record, tried, [], pages, table, found)


def compare(one: Inspection, other: Inspection, request: Request) -> Comparison:
    """Two dumps by logical position.

    Raises ``ConfigError`` if one is not recognised, or they hold different records.
    """
    records = []
    for each in (one, other):
        if each.record is None:
            raise ConfigError(
                f"{each.dump.title} is not recognised: name its record with --format."
            )
        records.append(each.record)
    kinds = [(record.name, record.layout.format.entry_bytes) for record in records]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"{one.dump.title} holds {kinds[0][0]} and {other.dump.title} {kinds[1][0]}: rows of "
            "two formats are not compared byte by byte."
        )
    entry, ratio = records[0].layout.format, request.ratio or 0
    left, right = (
        parse(record.layout, each.pages[each.table])
        for record, each in zip(records, (one, other), strict=True)
    )
    count = min(len(left.live), len(right.live))
    one_by_one, others = left.whole[:count], right.whole[:count]
    alike = (one_by_one == others).all(axis=1)
    used = left.live[:count] | right.live[:count]
    names = _names(entry, left, right, count)
    known = {row.tobytes(): i for i, row in enumerate(one_by_one) if left.live[i]}
    hits: dict[str, list[tuple[int, str]]] = {}
    for i in np.flatnonzero(~alike & used).tolist():
        kind, detail = names[i], ""
        place = known.get(others[i].tobytes()) if kind == "other content" else None
        if place is not None:
            kind, detail = "elsewhere", f"it is entry {place:,} of the first"
        hits.setdefault(kind, []).append((i, detail))
    differences = [
        Difference(kind, len(found), found[0][0], found[0][0] * max(ratio, 1), found[0][1])
        for kind, found in hits.items()
    ]
    order = sorted(differences, key=lambda each: each.entry)
    alone = int(left.live[count:].sum()), int(right.live[count:].sum())
    return Comparison(int(used.sum()), int((alike & used).sum()), order, alone)
