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
    """One kind of difference.

    Attributes:
        kind: A key of ``MEANINGS``.
        rows: How many rows differ so.
        entry: The first: logical entry of the request,
        position: and its position in tokens.
        detail: What more is known of the first.
    """

    kind: str
    rows: int
    entry: int
    position: int
    detail: str = ""


@dataclass(frozen=True)
class Comparison:
    """What two dumps share.

    Attributes:
        rows: Logical rows that both have.
        equal: Bit for bit.
        differences: By kind, in the order of the first row.
        alone: Rows that the first and the second hold behind the last of the other.
    """

    rows: int
    equal: int
    differences: list[Difference]
    alone: tuple[int, int] = (0, 0)


def compare_dumps(
    records: tuple[Record, Record],
    pages: tuple[Bytes, Bytes],
    tables: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    ratio: int,
    first: int,
    model: DSV4Config,
) -> Comparison:
    """Rows by logical position; formats are equal, pages may be of other sizes."""
    one, other = (
        parse(record.layout, each[table])
        for record, each, table in zip(records, pages, tables, strict=True)
    )
    entry = records[0].layout.format
    count = min(len(one.live), len(other.live))
    alike = (_whole(one)[:count] == _whole(other)[:count]).all(axis=1)
    used = one.live[:count] | other.live[:count]
    names = _names(entry, one, other, count)
    known = {row.tobytes(): i for i, row in enumerate(_whole(one)[:count]) if one.live[i]}
    kinds: dict[str, list[tuple[int, str]]] = {}
    turns = _Turns(frequencies(model, ratio))
    for i in np.flatnonzero(~alike & used).tolist():
        kind, detail = names[i], ""
        if kind == "rope":
            turn = turns.find(one.tail[i], other.tail[i])
            if turn is not None:
                kind, detail = "position", f"{turn.tokens:+,} tokens"
        elif kind == "other content":
            place = known.get(_whole(other)[i].tobytes())
            if place is not None:
                kind, detail = "elsewhere", f"it is entry {first + place:,} of the first"
        kinds.setdefault(kind, []).append((i, detail))
    differences = [
        Difference(
            kind, len(hits), first + hits[0][0], (first + hits[0][0]) * max(ratio, 1), hits[0][1]
        )
        for kind, hits in kinds.items()
    ]
    order = sorted(differences, key=lambda each: each.entry)
    alone = int(one.live[count:].sum()), int(other.live[count:].sum())
    return Comparison(int(used.sum()), int((alike & used).sum()), order, alone)


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
class Asked:
    """What somebody knows of a dump.

    Attributes:
        tensor: Which one of a file.
        format: Name of the record; None to find out.
        entries: Of a page; None to find out.
        table: File with a request's pages in logical order.
    """

    tensor: str | None = None
    format: str | None = None
    entries: int | None = None
    table: Path | None = None


@dataclass(frozen=True)
class Context:
    """What somebody knows of the request whose pages they are.

    Attributes:
        model: Whose RoPE it is.
        ratio: Tokens of an entry, 0 for a window; None where it is not known.
        first: Entry of the first row.
        entries: That it should have; None where nobody said.
    """

    model: DSV4Config
    ratio: int | None = None
    first: int = 0
    num_entries: int | None = None


@dataclass(frozen=True)
class Inspection:
    """One dump.

    Attributes:
        dump: Its bytes.
        record: What it holds; None where that is not recognised.
        tried: Candidates, the best first.
        unmarked: Rows without a mark that it may be.
        pages: uint8[N, page bytes]; all bytes as one page where the record is not known.
        table: Pages in the order that they are looked at.
        faults: Of the record's rows.
    """

    dump: Dump
    record: Record | None
    tried: list[Candidate]
    unmarked: list[str]
    pages: Bytes
    table: NDArray[np.int64]
    faults: list[Fault]


def inspect(path: Path, asked: Asked, context: Context) -> Inspection:
    """Read a dump, recognise its record, and find its faults.

    Raises:
        TraceError: A file that cannot be read.
        ConfigError: A format that no pages of this size have.
    """
    dump = read_dump(path, asked.tensor)
    tried = candidates(dump, asked.entries, asked.format)
    if asked.format and asked.format not in {name for name, *_ in known_records()}:
        names = ", ".join(sorted({name for name, *_ in known_records()}))
        raise ConfigError(f"--format {asked.format}: there is no such record: give {names}.")
    if asked.format and not tried:
        raise ConfigError(
            f"--format {asked.format}: {dump.title} is {len(dump.data):,} B, which are no whole "
            "pages of it: say --entries, or leave --format out."
        )
    best = tried[0] if asked.format else recognise(tried)
    if best is None:
        pages = dump.data[None]
        return Inspection(dump, None, tried, unmarked(dump), pages, np.zeros(0, np.int64), [])
    record = best.record
    pages = dump.data.reshape(-1, record.layout.page_bytes)
    table, request = np.arange(len(pages)), None
    if asked.table:
        table = read_table(asked.table, len(pages))
    if asked.table or context.ratio is not None:
        ratio = context.ratio or 0
        request = Request(table, ratio, context.first, context.model, context.num_entries)
    _check_held(context.num_entries, record, request)
    faults = find_faults(record, pages, request)
    return Inspection(dump, record, tried, [], pages, table, faults)


def _check_held(held: int | None, record: Record, request: Request | None) -> None:
    if held is None:
        return
    if request is None:
        raise ConfigError("--held counts a request's entries: give --ratio, or its --table.")
    rows = len(request.table) * record.layout.entries
    if held > rows:
        raise ConfigError(
            f"--held {held:,}: these pages have {rows:,} rows: others of the request are missing."
        )


def compare(one: Inspection, other: Inspection, context: Context) -> Comparison:
    """Two dumps by logical position.

    Raises:
        ConfigError: One is not recognised, or they hold different records.
    """
    records = []
    for each in (one, other):
        if each.record is None:
            raise ConfigError(
                f"{each.dump.title} is not recognised: name its record with --format."
            )
        records.append(each.record)
    first, second = records
    kinds = [(record.name, record.layout.format.entry_bytes) for record in records]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"{one.dump.title} holds {first.name} and {other.dump.title} {second.name}: rows of "
            "two formats are not compared byte by byte."
        )
    return compare_dumps(
        (first, second),
        (one.pages, other.pages),
        (one.table, other.table),
        ratio=context.ratio or 0,
        first=context.first,
        model=context.model,
    )
