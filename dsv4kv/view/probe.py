"""What ``dsv4kv probe`` found: how many faults, those first, then the answer to every question."""

from dsv4kv.diagnose.probe.experiments import Conclusion, Examination
from dsv4kv.diagnose.probe.questioner import Ledger
from dsv4kv.units import counted
from dsv4kv.view.table import Columns, Finding, Level, Page, Part, Table, Text, mark

_LEVELS: dict[str, Level] = {"good": "good", "note": "note", "bad": "bad", "undecided": "missing"}


def probe_page(found: Examination, ledger: Ledger) -> Page:
    """The number of faults, each of them, and what to change; then every question."""
    bad = [each for each in found.conclusions if each.level == "bad"]
    undecided = sum(each.level == "undecided" for each in found.conclusions)
    total = len(found.conclusions)
    cost = f"{counted(ledger.prompts, 'prompt')}, {ledger.tokens:,} tokens"
    answered = f"{total - undecided} of {total} questions answered ({cost})"
    level: Level = "bad" if bad else "warning" if undecided else "good"
    answer: list[Part] = [Finding(level, f"{counted(len(bad), 'fault')} found, {answered}")]
    if found.died:
        answer.append(Finding("bad", f"the server stopped answering: {found.died}"))
    answer += [Finding("bad", f"{each.question}: {each.answer}") for each in bad]

    def answer_of(each: Conclusion) -> str:
        return ("undecidable: " if each.level == "undecided" else "") + each.answer

    columns: Columns = [
        ("", lambda each: mark(_LEVELS[each.level])),
        ("question", lambda each: each.question),
        ("answer", answer_of),
    ]
    answer += ["", Table("A server's prefix cache", columns, found.conclusions, keys=2)]
    advice = [Text(f"{each.question}: {each.advice}") for each in found.conclusions if each.advice]
    answer += ["", Text("What to change", "strong"), *advice] if advice else []
    return Page("Prefix cache of a server", answer)
