"""Whether a manager keeps its invariants, and the shortest sequence where it does not."""

from collections.abc import Iterator

from dsv4kv.diagnose.conform.check import INVARIANTS, Verdict
from dsv4kv.units import counted
from dsv4kv.view.table import Columns, Finding, Part, Table, Text, mark


def report_conformity(engine: str, version: str, verdict: Verdict) -> Iterator[Part]:
    """PASS or FAIL, a row for every invariant, then the failures."""
    done = counted(verdict.operations, "operation")
    done = f"{engine} {version}: {done} in {counted(verdict.sequences, 'sequence')}"
    if verdict.failures:
        yield Finding("bad", f"FAIL: {' and '.join(verdict.failures)} broke; {done}")
    else:
        yield Finding("good", f"PASS: {done}")
    yield ""
    columns: Columns = [
        ("", lambda item: mark("bad" if item[0] in verdict.failures else "good")),
        ("invariant", lambda item: item[0]),
        ("broken in", lambda item: counted(verdict.broken[item[0]], "sequence")),
        ("what holds", lambda item: item[1]),
    ]
    yield Table("Invariants", columns, list(INVARIANTS.items()), keys=2)
    for failure in verdict.failures.values():
        settings = ", ".join(f"{name} {v}" for name, v in failure.sequence.settings.items())
        yield from ("", Text(f"{failure.kind}: {failure.says}", "bad"))
        seen = f"first seen after {counted(failure.found_after, 'operation')}"
        length = f"{len(failure.sequence.operations)}, with {settings}:"
        if failure.repeats:
            yield Text(f"{seen}; the shortest has {length}", "dim")
        else:
            yield Text(f"{seen}; did not repeat when the same sequence ran again", "warning")
            yield Text(f"the sequence has {length}", "dim")
        for operation in failure.sequence.operations:
            yield Text("  " + " ".join(map(str, operation)))
