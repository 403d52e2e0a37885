"""What a machine has, and what to do about the rest."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dsv4kv.diagnose.doctor import Check
from dsv4kv.units import counted
from dsv4kv.view.table import ABSENT, Columns, Finding, Level, Part, Table, Text, mark

if TYPE_CHECKING:
    from dsv4kv.diagnose.gpu import GpuReport

_LEVELS: dict[str, Level] = {"good": "good", "note": "note", "missing": "missing", "broken": "bad"}
_LONGEST_PATH = 36


def report_checks(checks: Sequence[Check], *, verbose: bool) -> Iterator[Part]:
    """Whether a bench can run, what to do, and what is not good; or a table for each topic."""
    count = Counter(check.status for check in checks)
    counts = ", ".join(
        counted(count[each], each) if each == "note" else f"{count[each]} {each}"
        for each in ("good", "note", "missing", "broken")
        if count[each]
    )
    can = "cannot" if count["broken"] else "can"
    level: Level = "bad" if count["broken"] else "good"
    yield Finding(level, f"dsv4kv bench {can} run here: of {len(checks)} checks {counts}")
    for check in checks:
        if check.advice:
            problem: Level = "bad" if check.status == "broken" else "warning"
            yield Finding(problem, f"{check.name}: {check.advice}")
    columns: Columns = [
        ("", lambda check: mark(_LEVELS[check.status])),
        ("name", lambda check: check.name),
        ("found", lambda check: Text(_short(check.found))),
        ("enables", lambda check: Text(check.enables, "dim")),
    ]
    hidden, rest = (0, "") if verbose else (count["good"], "--verbose")
    tables: dict[str, list[Check]] = {}
    for check in (check for check in checks if verbose or check.status != "good"):
        title = check.topic if verbose else "Missing, or with a remark"
        tables.setdefault(title, []).append(check)
    for title, rows in tables.items():
        yield from ("", Table(title, columns, rows, keys=2, hidden=hidden, rest=rest))


def report_gpu(report: "GpuReport") -> Iterator[Part]:
    """Whether the GPU is right, and how its times are to those that it should take."""
    wrong, card = len(report.wrong), report.card
    said = f"{wrong} of {report.checks} checks differ from the reference"
    yield Finding("bad" if wrong else "good", f"{card.name} ({card.architecture}): {said}")
    for sentence in report.wrong:
        yield Finding("bad", sentence)
    yield ""
    columns: Columns = [
        ("operation", lambda row: row.name),
        ("predicted", lambda row: _time(row.predicted_us)),
        ("measured", lambda row: _time(row.measured_us)),
        ("of roofline", lambda row: _share(row.roofline_us, row.measured_us)),
    ]
    copied = f"{card.copy_gbps:,.0f} GB/s of a copy, {card.multiprocessors} multiprocessors"
    yield Table(copied, columns, report.rows, keys=1)


def _time(us: float | None) -> str:
    return ABSENT if us is None else f"{us:,.1f} µs"


def _share(least_us: float | None, measured_us: float | None) -> str:
    if least_us is None or not measured_us:
        return ABSENT
    return f"{100 * least_us / measured_us:.0f} %"


def _short(found: str) -> str:
    return " ".join(
        re.sub(rf"^/.*?(?=/.{{1,{_LONGEST_PATH}}}$)", "…", word)
        if len(word) > _LONGEST_PATH
        else word
        for word in found.split(" ")
    )
