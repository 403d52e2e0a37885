"""Whether a manager keeps what it promises, and the shortest sequence where it does not."""

from collections.abc import Iterator

from dsv4kv.conform.check import INVARIANTS, Failure, Verdict
from dsv4kv.units import counted
from dsv4kv.view.table import Finding, Mark, Part, Table, Text, names, numbers, prose


def report_conformity(engine: str, version: str, verdict: Verdict) -> Iterator[Part]:
    """A row for every invariant, then the failures."""
    yield Table(
        f"{engine} {version}",
        [*names("", "invariant"), *numbers("broken in"), *prose("what holds")],
        [
            (
                Mark("bad" if kind in verdict.failures else "good"),
                kind,
                counted(verdict.broken[kind], "sequence"),
                text,
            )
            for kind, text in INVARIANTS.items()
        ],
        keys=2,
    )
    for failure in verdict.failures.values():
        yield from ("", *_explain(failure))
    done = (
        f"{counted(verdict.operations, 'operation')} in {counted(verdict.sequences, 'sequence')}"
    )
    yield ""
    if verdict.failures:
        yield Finding("bad", f"FAIL: {' and '.join(verdict.failures)} broke; {done}")
    else:
        yield Finding("good", f"PASS: {done}")


def _explain(failure: Failure) -> Iterator[Part]:
    settings = ", ".join(f"{name} {value}" for name, value in failure.sequence.settings.items())
    yield Text(f"{failure.kind}: {failure.says}", "bad")
    yield Text(
        f"first seen after {counted(failure.found_after, 'operation')}; the shortest has "
        f"{len(failure.sequence.operations)}, with {settings}:",
        "dim",
    )
    for operation in failure.sequence.operations:
        yield Text("  " + " ".join(map(str, operation)))
