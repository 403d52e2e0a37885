"""What a machine has, and what to do about the rest."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from dsv4kv.doctor.machine import Check, Status
from dsv4kv.units import counted
from dsv4kv.view.table import MARKS, Finding, Level, Mark, Part, Table, Text, names, prose

_LEVELS: dict[str, Level] = {
    "good": "good",
    "note": "note",
    "missing": "missing",
    "broken": "bad",
}
_LONGEST_PATH = 36


def report_checks(checks: Sequence[Check]) -> Iterator[Part]:
    """A table for each topic, then what to do."""
    for topic in dict.fromkeys(check.topic for check in checks):
        yield _table(topic, [check for check in checks if check.topic == topic])
        yield ""
    advised = [check for check in checks if check.advice]
    yield Text("What to do", "strong") if advised else Text("nothing to do.", "good")
    for check in advised:
        yield Text(f"{check.name}: {check.advice}", MARKS[_LEVELS[check.status]][1])
    yield from ("", _sum_up(checks))


def _sum_up(checks: Sequence[Check]) -> Finding:
    """Whether a bench can run, and what is not as it could be."""
    count = Counter(check.status for check in checks)
    notes = [counted(count["note"], "note")] if count["note"] else []
    others: list[Status] = ["good", "missing", "broken"]
    counts = ", ".join([*notes, *(f"{count[each]} {each}" for each in others if count[each])])
    if count["broken"]:
        return Finding("bad", f"dsv4kv bench cannot run here: of {len(checks)} checks {counts}")
    return Finding("good", f"dsv4kv bench can run here: of {len(checks)} checks {counts}")


def _table(topic: str, checks: Sequence[Check]) -> Table:
    return Table(
        topic,
        [*names("", "name"), *prose("found", "enables")],
        [
            (
                Mark(_LEVELS[check.status]),
                check.name,
                _short(check.found),
                Text(check.enables, "dim"),
            )
            for check in checks
        ],
        keys=2,
    )


def _short(found: str) -> str:
    """Long paths by how they end: a column is as wide as its longest word."""
    return " ".join(
        re.sub(rf"^/.*?(?=/.{{1,{_LONGEST_PATH}}}$)", "…", word)
        if len(word) > _LONGEST_PATH
        else word
        for word in found.split(" ")
    )
