"""What ``dsv4kv probe`` found: how many faults, those first, then the answer to every question."""

from collections.abc import Iterator

from dsv4kv.diagnose.probe.experiments import Examination
from dsv4kv.diagnose.probe.questioner import Ledger
from dsv4kv.units import counted
from dsv4kv.view.table import Finding, Level, Page, Part, Table, Text, mark

_LEVELS: dict[str, Level] = {"good": "good", "note": "note", "bad": "bad", "undecided": "missing"}


def probe_page(found: Examination, ledger: Ledger) -> Page:
    """The number of faults, each of them, and what to change; then every question."""
    table = Table(
        "A server's prefix cache",
        [
            ("", lambda each: mark(_LEVELS[each.level])),
            ("question", lambda each: each.question),
            (
                "answer",
                lambda each: ("undecidable: " if each.level == "undecided" else "") + each.answer,
            ),
        ],
        found.conclusions,
        keys=2,
    )
    advice = [Text(f"{each.question}: {each.advice}") for each in found.conclusions if each.advice]
    change: list[Part] = ["", Text("What to change", "strong"), *advice] if advice else []
    return Page(
        "Prefix cache of a server",
        [_sum_up(found, ledger), *_faults(found), "", table, *change],
        [],
    )


def _sum_up(found: Examination, ledger: Ledger) -> Finding:
    faults = sum(each.level == "bad" for each in found.conclusions)
    undecided = sum(each.level == "undecided" for each in found.conclusions)
    total = len(found.conclusions)
    cost = f"{counted(ledger.prompts, 'prompt')}, {ledger.tokens:,} tokens"
    return Finding(
        "bad" if faults else "warning" if undecided else "good",
        f"{counted(faults, 'fault')} found, {total - undecided} of {total} questions answered "
        f"({cost})",
    )


def _faults(found: Examination) -> Iterator[Finding]:
    if found.died:
        yield Finding("bad", f"the server stopped answering: {found.died}")
    yield from (
        Finding("bad", f"{each.question}: {each.answer}")
        for each in found.conclusions
        if each.level == "bad"
    )
