"""Two dumps of what should be one content: where they part first, and how."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose.dumps.faults import (
    SAME,
    Fault,
    Request,
    Turn,
    explains,
    find_faults,
    frequencies,
    pairs_of,
    shift_between,
)
from dsv4kv.diagnose.dumps.reading import Bytes, Dump, read_dump, read_table
from dsv4kv.diagnose.dumps.records import (
    Candidate,
    Mask,
    Parsed,
    Record,
    candidates,
    code_sizes,
    known_records,
    parse,
    recognise,
    unmarked,
)
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat

MEANINGS = {
    "one step": "values a quantisation step apart: rounding",
    "scale": "the scale of a group, its values alike",
    "rope": "RoPE channels alone",
    "position": "RoPE turned as at another position, all else equal",
    "missing": "a row of zeros",
    "elsewhere": "a row that the other dump has at another position",
    "other content": "a row of other content",
}
"""Every kind of difference, the harmless one first."""

MOST_STEPS = 2
"""Numbers of bf16 that rounding may set apart."""

_TURNS_LOOKED_FOR = 4


@dataclass(frozen=True)
class Difference:
    """One kind of difference."""

    kind: str  # a key of ``MEANINGS``
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


class _Turns:
    """What turned rows' RoPE: most often one turn all of them, for a search takes a second."""

    def __init__(self, speeds: NDArray[np.float64]) -> None:
        self._speeds = speeds
        self._known: list[Turn] = []
        self._searches = _TURNS_LOOKED_FOR

    def find(self, one: Bytes, other: Bytes) -> Turn | None:
        """Tails uint8[bytes] of one row in both dumps; None where no turn is known that fits."""
        first, second = (pairs_of(each[None])[0] for each in (one, other))
        for turn in self._known:
            if explains(first, second, self._speeds, turn.tokens) >= SAME:
                return turn
        if self._searches:
            self._searches -= 1
            found = shift_between(first, second, self._speeds)
            self._known += [found] if found else []
            return found
        return None


def _whole(parsed: Parsed) -> Bytes:
    return np.concatenate([parsed.codes, parsed.scales, parsed.tail], axis=1)


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
    """Rows whose codes are a step apart at most."""
    if entry.value == "bf16":
        a, b = (np.ascontiguousarray(x).view(np.int16).astype(np.int32) for x in (one, other))
        apart = np.abs(_ordered(a) - _ordered(b))
        return np.asarray((apart <= MOST_STEPS).all(axis=1))
    sizes = [code_sizes(entry, each).astype(np.int32) for each in (one, other)]
    signs = [_signs(entry, each) for each in (one, other)]
    values = [np.where(sign, -size, size) for size, sign in zip(sizes, signs, strict=True)]
    return np.asarray((np.abs(values[0] - values[1]) <= 1).all(axis=1))


def _ordered(words: NDArray[np.int32]) -> NDArray[np.int32]:
    size = words & 0x7FFF
    return np.where(words < 0, -size, size)


def _signs(entry: EntryFormat, codes: Bytes) -> Mask:
    if entry.value == "e4m3":
        return np.asarray(codes >= 128)
    signs = np.stack([codes & 8, codes >> 4 & 8], axis=-1)
    return np.asarray(signs.reshape(len(codes), -1) > 0)


@dataclass(frozen=True)
class Context:
    """The request that the pages belong to."""

    model: DSV4Config  # whose RoPE it is
    ratio: int | None = None  # tokens of an entry, 0 for a window; None where it is not known
    first: int = 0  # entry of the first row
    held: int | None = None  # entries that it should have; None where nobody said


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
    context: Context,
    *,
    tensor: str | None = None,
    format_name: str | None = None,
    entries: int | None = None,
    table_file: Path | None = None,
) -> Inspection:
    """Read a dump, recognise its record, and find its faults.

    Args:
        path: The dump.
        context: Of its request.
        tensor: Which one of a file.
        format_name: The record's; None to find out.
        entries: Of a page; None to find out.
        table_file: The request's pages in logical order.

    Raises:
        TraceError: A file that cannot be read.
        ConfigError: A format that no pages of this size have.
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
    table, request = np.arange(len(pages)), None
    if table_file:
        table = read_table(table_file, len(pages))
    if table_file or context.ratio is not None:
        ratio = context.ratio or 0
        request = Request(table, ratio, context.first, context.model, context.held)
    rows = len(table) * record.layout.entries
    if context.held is not None and request is None:
        raise ConfigError("--held counts a request's entries: give --ratio, or its --table.")
    if context.held is not None and context.held > rows:
        raise ConfigError(
            f"--held {context.held:,}: these pages have {rows:,} rows: others of the request are "
            "missing."
        )
    return Inspection(dump, record, tried, [], pages, table, find_faults(record, pages, request))


def compare(one: Inspection, other: Inspection, context: Context) -> Comparison:
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
    entry, ratio, first = records[0].layout.format, context.ratio or 0, context.first
    left, right = (
        parse(record.layout, each.pages[each.table])
        for record, each in zip(records, (one, other), strict=True)
    )
    count = min(len(left.live), len(right.live))
    alike = (_whole(left)[:count] == _whole(right)[:count]).all(axis=1)
    used = left.live[:count] | right.live[:count]
    names = _names(entry, left, right, count)
    known = {row.tobytes(): i for i, row in enumerate(_whole(left)[:count]) if left.live[i]}
    hits: dict[str, list[tuple[int, str]]] = {}
    turns = _Turns(frequencies(context.model, ratio))
    for i in np.flatnonzero(~alike & used).tolist():
        kind, detail = names[i], ""
        if kind == "rope" and (turn := turns.find(left.tail[i], right.tail[i])):
            kind, detail = "position", f"{turn.tokens:+,} tokens"
        elif kind == "other content":
            place = known.get(_whole(right)[i].tobytes())
            if place is not None:
                kind, detail = "elsewhere", f"it is entry {first + place:,} of the first"
        hits.setdefault(kind, []).append((first + i, detail))
    differences = [
        Difference(kind, len(found), found[0][0], found[0][0] * max(ratio, 1), found[0][1])
        for kind, found in hits.items()
    ]
    order = sorted(differences, key=lambda each: each.entry)
    alone = int(left.live[count:].sum()), int(right.live[count:].sum())
    return Comparison(int(used.sum()), int((alike & used).sum()), order, alone)
