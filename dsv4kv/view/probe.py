"""What ``dsv4kv probe`` found: faults first, then a table of every question."""

from collections.abc import Iterator
from pathlib import Path

from dsv4kv.files import write_named
from dsv4kv.probe.conclusions import Conclusion
from dsv4kv.probe.experiments import Examination
from dsv4kv.probe.questioner import Ledger
from dsv4kv.units import counted
from dsv4kv.view.page.build import Page
from dsv4kv.view.page.sections import Section
from dsv4kv.view.page.write import render_page
from dsv4kv.view.table import Finding, Level, Mark, Part, Table, Text, names, prose

_LEVELS: dict[str, Level] = {
    "good": "good",
    "note": "note",
    "bad": "bad",
    "undecided": "missing",
}


def report_probe(found: Examination, ledger: Ledger) -> Iterator[Part]:
    """Faults, the table, settings to change, and what it cost."""
    yield from _faults(found)
    yield _table(found)
    yield ""
    advised = [each for each in found.conclusions if each.advice]
    if advised:
        yield Text("What to change", "strong")
        yield from (Text(f"{each.question}: {each.advice}") for each in advised)
        yield ""
    yield sum_up(found, ledger)


def write_probe(found: Examination, ledger: Ledger, target: Path) -> None:
    """Write one HTML page; raises ``ConfigError`` where it cannot be written."""
    section = Section(
        "probe",
        "What its answers show",
        tables={"conclusions": _table(found)},
        findings=list(_faults(found)),
    )
    page = Page("dsv4kv probe", sum_up(found, ledger), [], [], section, [])
    write_named(target, render_page(page), "--html")


def sum_up(found: Examination, ledger: Ledger) -> Finding:
    """How many questions are answered, and at what cost."""
    faults = sum(each.level == "bad" for each in found.conclusions)
    open_ = sum(each.level == "undecided" for each in found.conclusions)
    cost = f"{counted(ledger.prompts, 'prompt')}, {ledger.tokens:,} tokens"
    answered = f"{len(found.conclusions) - open_} of {len(found.conclusions)} questions answered"
    return Finding(
        "bad" if faults else "warning" if open_ else "good",
        f"{counted(faults, 'fault')} found, {answered} ({cost})",
    )


def _faults(found: Examination) -> Iterator[Finding]:
    if found.died:
        yield Finding("bad", f"the server stopped answering: {found.died}")
    yield from (
        Finding("bad", f"{each.question}: {each.answer}")
        for each in found.conclusions
        if each.level == "bad"
    )


def _table(found: Examination) -> Table:
    return Table(
        "A server's prefix cache",
        [*names("", "question"), *prose("answer")],
        [(_mark(each), each.question, _answer(each)) for each in found.conclusions],
        keys=2,
    )


def _mark(each: Conclusion) -> Mark:
    return Mark(_LEVELS[each.level])


def _answer(each: Conclusion) -> str:
    return f"undecidable: {each.answer}" if each.level == "undecided" else each.answer
