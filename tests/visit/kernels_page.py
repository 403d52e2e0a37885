"""The table of docs/kernels.md: works of the visit, predicted for an H200 and measured on it."""

from pathlib import Path

from dsv4kv.bench.predict import H200
from visit import rows
from visit.place import planned_place
from visit.plan import CALLS
from visit.questions import Question

_ROWS = Path(__file__).resolve().parents[2] / "results" / "h200" / "rows" / "h200.jsonl"
_HEAD = "| work | MB | GFLOP | roofline | predicted | measured |\n|---|---|---|---|---|---|"


def table() -> str:
    """In Markdown; a figure enters the last column from a visit only."""
    measured = {row["question"]: row["measured"] for row in rows.read(_ROWS)}
    asked = [question for step in CALLS.values() for each in step for question in each.questions]
    timed = [each for each in asked if each.work and each.unit != "%"]
    return "\n".join([_HEAD, *(_row(each, measured.get(each.name)) for each in timed)])


def _row(question: Question, measured: float | None) -> str:
    assert question.work
    work = question.work(planned_place())
    least_us = H200.roofline_ns(work.bytes, work.flops) / 1e3
    predicted_us = work.predicted_ns(H200) / 1e3
    sizes = f"{work.bytes / 1e6:.1f} | {work.flops / 1e9:.1f}" if work.flops else ""
    sizes = sizes or f"{work.bytes / 1e6:.1f} | –"
    told = "–"
    if measured is not None:  # of an entry, or of a call
        told = f"{measured * (work.entries / 1e3 if question.unit == 'ns' else 1):.1f} µs"
    return f"| `{question.name}` | {sizes} | {least_us:.1f} µs | {predicted_us:.1f} µs | {told} |"
