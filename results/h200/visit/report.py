"""The table of a visit: what was predicted, what is wanted, and what was measured."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from visit import rows
from visit.questions import H100, H200, Question

_HEAD = "| figure | why | H200 | H100 | wanted | measured |\n|---|---|---|---|---|---|"
_NOTHING = "–"


def table(files: Sequence[Path], questions: Sequence[Question]) -> str:
    """Questions in Markdown, with each GPU's latest answers in these files beside them."""
    answers: dict[str, dict[str, rows.Row]] = {}
    for row in _answers(files):
        answers.setdefault(row["question"], {})[row["gpu"]] = row
    return "\n".join([_HEAD, *(_line(each, answers) for each in questions)])


def _answers(files: Iterable[Path]) -> Iterable[rows.Row]:
    for file in files:
        yield from (row for row in rows.read(file) if row.get("kind") == "answer")


def _line(question: Question, answers: dict[str, dict[str, rows.Row]]) -> str:
    predicted = [_figure(question.on(gpu), question.unit) for gpu in (H200, H100)]
    wanted = str(question.bar) if question.bar else _NOTHING
    found = answers.get(question.name, {}).values()
    measured = "; ".join(_measured(question, row) for row in found) or _NOTHING
    cells = [f"{question.words} (`{question.name}`)", question.why, *predicted, wanted, measured]
    return f"| {' | '.join(cells)} |"


def _measured(question: Question, row: rows.Row) -> str:
    if row["measured"] is None:
        return f"no answer: {row['detail'].get('why', 'not known why')}"
    figure = _figure(row["measured"], question.unit)
    if row["interval"]:
        low, high = row["interval"]
        figure += f" [{low:.4g}, {high:.4g}]"
    return f"{figure}, {row['gpu']}: {row['verdict']}"


def _figure(value: float | None, unit: str) -> str:
    return _NOTHING if value is None else f"{value:.4g} {unit}".strip()
