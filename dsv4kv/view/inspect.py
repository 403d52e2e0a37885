"""Contents and faults of pages, the answer first."""

from collections.abc import Iterator

from dsv4kv.diagnose import dumps as faults
from dsv4kv.diagnose.dumps import Comparison, Inspection
from dsv4kv.diagnose.records import SURE
from dsv4kv.units import counted
from dsv4kv.view.quantity import quantity
from dsv4kv.view.table import Columns, Finding, Number, Part, Table

_BEGIN_BYTES = 2**26  # of a dump, which may be many times as large
_CANDIDATES = 3


def report_inspection(found: Inspection) -> Iterator[Part]:
    """Which record it is and its faults; then the faults and the candidates."""
    yield from _answers(found)
    if found.record and found.faults:
        yield ""
        yield Table(
            "Faults",
            [
                ("kind", lambda each: each.kind),
                ("rows", lambda each: quantity(each.rows)),
                ("first at", _place),
                ("meaning", lambda each: faults.FAULTS[each.kind]),
            ],
            found.faults,
            note="pages and entries from 0, as they are in the dump",
        )
    if found.tried:
        yield ""
        columns: Columns = [
            ("record", lambda each: each.record.title),
            ("of", lambda e: e.record.of + ("" if e.record.usual else "; no engine's")),
            ("rows that fit", lambda each: Number(f"{each.fits:.1%}")),
            ("rows", lambda each: quantity(each.rows)),
        ]
        yield Table(
            f"{found.dump.title}, {len(found.dump.data):,} B", columns, found.tried[:_CANDIDATES]
        )


def _answers(found: Inspection) -> Iterator[Finding]:
    if found.record is None:
        yield Finding("bad", f"not recognised: {_unknown(found)}")
        return
    title, pages = found.record.title, counted(len(found.table), "page")
    if not found.record.usual:
        yield Finding("bad", f"{title}: engines arrange this record otherwise.")
    if found.faults:
        kinds = ", ".join(each.kind for each in found.faults)
        yield Finding("bad", f"{title}; {pages} with faults: {kinds}")
    elif found.record.usual:
        yield Finding("good", f"{title}; {pages}, no fault found")


def _unknown(found: Inspection) -> str:
    if found.unmarked:
        fits = " or ".join(found.unmarked)
        return f"by size it may be {fits}, whose bytes carry no mark: name it with --format."
    begin = found.dump.data[:_BEGIN_BYTES]
    if not found.tried and not begin.any():
        known = "every byte is" if len(begin) == len(found.dump.data) else "the first 64 MiB are"
        return f"{known} zero: nothing was written to these pages."
    if not found.tried:
        return "the size is no whole number of pages of any V4, V4.1 or V3.2 record."
    best = found.tried[0]
    return (
        f"{best.record.title} is closest, and {best.fits:.0%} of its rows fit ({SURE:.0%} are "
        "needed)."
    )


def _place(fault: faults.Fault) -> str:
    place = f"page {fault.page}"
    place += f", entry {fault.entry}" if fault.entry is not None else ""
    return place + (f", token {fault.position:,}" if fault.position is not None else "")


def _meaning(each: faults.Difference) -> str:
    return faults.DIFFERENCES[each.kind] + (f" ({each.detail})" if each.detail else "")


def report_comparison(found: Comparison) -> Iterator[Part]:
    """How many rows are equal, and how the others differ."""
    rows = f"{found.equal:,} of {found.rows:,} rows are equal"
    worst = next((each for each in found.differences if each.kind != "one step"), None)
    if worst:
        yield Finding("bad", f"{rows}; first at entry {worst.entry:,}: {worst.kind}")
    elif found.differences:
        yield Finding("warning", f"{rows}, the others within a quantisation step")
    else:
        yield Finding("good", f"{rows}, bit for bit")
    for which, alone in zip(("first", "second"), found.alone, strict=True):
        if alone:
            more = counted(alone, "row")
            yield Finding("warning", f"the {which} dump has {more} more, which are not compared")
    if found.differences:
        yield ""
        columns: Columns = [
            ("kind", lambda each: each.kind),
            ("rows", lambda each: quantity(each.rows)),
            ("first entry", lambda each: quantity(each.entry)),
            ("token", lambda each: quantity(each.position)),
            ("meaning", _meaning),
        ]
        yield Table("Differences", columns, found.differences)
