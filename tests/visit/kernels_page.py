"""The table of docs/kernels.md: works of the visit, as they are predicted for an H200."""

from dsv4kv.bench.predict import H200
from visit.place import planned_place
from visit.plan import CALLS
from visit.questions import Question

_HEAD = "| work | MB | GFLOP | roofline | predicted | measured |\n|---|---|---|---|---|---|"


def table() -> str:
    """In Markdown; a figure enters the last column from a visit only."""
    asked = [question for step in CALLS.values() for each in step for question in each.questions]
    return "\n".join([_HEAD, *(_row(each) for each in asked if each.work and each.unit != "%")])


def _row(question: Question) -> str:
    assert question.work
    work = question.work(planned_place())
    least_us = H200.roofline_ns(work.bytes, work.flops) / 1e3
    predicted_us = work.predicted_ns(H200) / 1e3
    sizes = f"{work.bytes / 1e6:.1f} | {work.flops / 1e9:.1f}" if work.flops else ""
    sizes = sizes or f"{work.bytes / 1e6:.1f} | –"
    return f"| `{question.name}` | {sizes} | {least_us:.1f} µs | {predicted_us:.1f} µs | – |"
