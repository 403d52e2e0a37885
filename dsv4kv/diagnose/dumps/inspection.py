"""All that is said of one dump, or of two."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4kv.diagnose.dumps.difference import Comparison, compare_dumps
from dsv4kv.diagnose.dumps.faults import Fault, Request, find_faults
from dsv4kv.diagnose.dumps.reading import Bytes, Dump, read_dump, read_table
from dsv4kv.diagnose.dumps.records import (
    Candidate,
    Record,
    candidates,
    known_records,
    recognise,
    unmarked,
)
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config


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
