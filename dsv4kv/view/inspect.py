"""What pages hold and what is wrong with them, in tables."""

from collections.abc import Iterator

from dsv4kv.dumps import difference, faults
from dsv4kv.dumps.difference import Comparison
from dsv4kv.dumps.inspection import Inspection
from dsv4kv.dumps.records import SURE
from dsv4kv.units import counted
from dsv4kv.view.table import Finding, Number, Part, Table, names, numbers, prose

_CANDIDATES = 3


def report_inspection(found: Inspection) -> Iterator[Part]:
    """The record, then its faults, then the answer."""
    title = f"{found.dump.title}, {len(found.dump.data):,} B"
    if found.tried:
        yield Table(
            title,
            [*names("record"), *prose("of"), *numbers("rows that fit", "of")],
            [
                (
                    each.record.title,
                    each.record.of if each.record.usual else f"{each.record.of}; no engine's",
                    Number(f"{each.fits:.1%}"),
                    Number(f"{each.rows:,}"),
                )
                for each in found.tried[:_CANDIDATES]
            ],
        )
        yield ""
    if found.record is None:
        yield Finding("bad", _unknown(found))
        return
    if found.faults:
        yield Table(
            "Faults",
            [*names("kind"), *numbers("rows"), *names("first at"), *prose("what it is")],
            [
                (each.kind, Number(f"{each.rows:,}"), _place(each), _meaning(each))
                for each in found.faults
            ],
            note="pages and entries from 0, as they are in the dump",
        )
        yield ""
    pages = counted(len(found.table), "page")
    if not found.record.usual:
        yield Finding("bad", f"{found.record.title}: engines arrange this record otherwise.")
    if found.faults:
        kinds = ", ".join(each.kind for each in found.faults)
        yield Finding("bad", f"{found.record.title}; {pages} with faults: {kinds}")
    elif found.record.usual:
        yield Finding("good", f"{found.record.title}; {pages}, no fault found")


def _unknown(found: Inspection) -> str:
    if found.unmarked:
        fits = " or ".join(found.unmarked)
        return (
            f"not recognised: by size it may be {fits}, whose bytes carry no mark: name it with "
            "--format."
        )
    if not found.tried and not found.dump.data.any():
        return "not recognised: every byte is zero: nobody wrote to these pages."
    if not found.tried:
        return "not recognised: it is no whole pages of any V4, V4.1 or V3.2 record."
    best = found.tried[0]
    return (
        f"not recognised: {best.record.title} comes nearest, and {best.fits:.0%} of its rows fit "
        f"({SURE:.0%} are needed)."
    )


def _place(fault: faults.Fault) -> str:
    place = f"page {fault.page}"
    place += f", entry {fault.entry}" if fault.entry is not None else ""
    return place + (f", token {fault.position:,}" if fault.position is not None else "")


def _meaning(fault: faults.Fault) -> str:
    meaning = faults.MEANINGS[fault.kind]
    return f"{meaning} ({fault.detail})" if fault.detail else meaning


def report_comparison(found: Comparison) -> Iterator[Part]:
    """How rows differ, and the answer."""
    yield ""
    if found.differences:
        yield Table(
            "Differences",
            [*names("kind"), *numbers("rows", "first entry", "token"), *prose("what it is")],
            [
                (
                    each.kind,
                    Number(f"{each.rows:,}"),
                    Number(f"{each.entry:,}"),
                    Number(f"{each.position:,}"),
                    difference.MEANINGS[each.kind] + (f" ({each.detail})" if each.detail else ""),
                )
                for each in found.differences
            ],
        )
        yield ""
    for which, alone in zip(("first", "second"), found.alone, strict=True):
        if alone:
            more = counted(alone, "row")
            yield Finding("warning", f"the {which} dump has {more} more, which are not compared")
    rows = f"{found.equal:,} of {found.rows:,} rows are equal"
    if not found.differences:
        yield Finding("good", f"{rows}, bit for bit")
    elif all(each.kind == "one step" for each in found.differences):
        yield Finding("warning", f"{rows}, the others within a quantisation step")
    else:
        worst = next(each for each in found.differences if each.kind != "one step")
        yield Finding("bad", f"{rows}; first at entry {worst.entry:,}: {worst.kind}")
