"""What a machine has, and what to do about the rest."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from dsv4kv.diagnose.doctor import Check
from dsv4kv.view.table import Columns, Finding, Level, Part, Table, Text, mark

_LEVELS: dict[str, Level] = {"good": "good", "note": "note", "missing": "missing", "broken": "bad"}
_LONGEST_PATH = 36


def report_checks(checks: Sequence[Check]) -> Iterator[Part]:
    """Whether a bench can run, what to do, and a table for each topic."""
    count = Counter(check.status for check in checks)
    counts = ", ".join(
        f"{count[each]} {each}" for each in ("good", "note", "missing", "broken") if count[each]
    )
    can = "cannot" if count["broken"] else "can"
    level: Level = "bad" if count["broken"] else "good"
    yield Finding(level, f"dsv4kv bench {can} run here: of {len(checks)} checks {counts}")
    for check in checks:
        if check.advice:
            problem: Level = "bad" if check.status == "broken" else "warning"
            yield Finding(problem, f"{check.name}: {check.advice}")
    for topic in dict.fromkeys(check.topic for check in checks):
        yield ""
        columns: Columns = [
            ("", lambda check: mark(_LEVELS[check.status])),
            ("name", lambda check: check.name),
            ("found", lambda check: Text(_short(check.found))),
            ("enables", lambda check: Text(check.enables, "dim")),
        ]
        yield Table(topic, columns, [check for check in checks if check.topic == topic], keys=2)


def _short(found: str) -> str:
    return " ".join(
        re.sub(rf"^/.*?(?=/.{{1,{_LONGEST_PATH}}}$)", "…", word)
        if len(word) > _LONGEST_PATH
        else word
        for word in found.split(" ")
    )
