"""A replay that did the work of its cache: times beside the model's, and what was compared."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from dsv4kv.measure.statistics import summarize
from dsv4kv.report.cells import add_estimates, format_number, new_table
from dsv4kv.report.findings import Finding
from dsv4kv.report.record import Case
from dsv4kv.report.replay_record import ReplayData
from dsv4kv.report.tables import operations_table

_NS_TO_MS = 1e-6
_MOST_FAILURES = 5
_STEPS = {"decode": "decode alone", "mixed": "with prompt chunks"}
_KINDS = {
    "fresh": "computed by the request",
    "shared": "in shared blocks",
    "copied": "in a copied block",
    "recomputed": "computed again after an eviction",
    "resumed": "from a checkpoint",
}


def data_tables(case: Case) -> Iterator[RenderableType]:
    """Steps and operations as they were measured; nothing where no data was moved."""
    if case.replay and case.replay.data:
        yield ""
        yield steps_table(case.replay.data)
        yield ""
        yield operations_table(case)


def steps_table(data: ReplayData) -> Table:
    """The cache's part of steps: measured on this machine, and by the model."""
    note = "measured here, beside bytes over the model's bandwidth"
    table = new_table("The cache's part of a step", note)
    table.add_column("steps", no_wrap=True)
    table.add_column("samples", justify="right")
    summaries = [summarize(times.measured_ns) for times in data.steps]
    medians = [summary.estimate for summary in summaries]
    cells = add_estimates(table, "median ms\nmeasured", medians, _NS_TO_MS)
    for header in ("median ms\nmodelled", "total s\nmeasured", "total s\nmodelled"):
        table.add_column(header, justify="right")
    for times, summary, cell in zip(data.steps, summaries, cells, strict=True):
        modelled = summarize(times.modelled_ns)
        table.add_row(
            _STEPS[times.kind],
            f"{summary.n:,}",
            cell,
            format_number(modelled.median * _NS_TO_MS),
            format_number(summary.total / 1e9),
            format_number(modelled.total / 1e9),
        )
    return table


def judge_data(case: Case) -> list[Finding]:
    """What was compared with a run without reuse, and what came of it."""
    if not (case.replay and case.replay.data):
        return []
    if failures := case.verification.failures:
        found = [Finding("bad", failure) for failure in failures[:_MOST_FAILURES]]
        if len(failures) > _MOST_FAILURES:
            more = len(failures) - _MOST_FAILURES
            found.append(Finding("bad", f"and {more:,} more, in the record"))
        return found
    compared = case.replay.data.compared
    if not compared:
        return [Finding("note", "nothing was compared with a run without reuse")]
    counts = ", ".join(f"{count:,} {_KINDS[kind]}" for kind, count in compared.items())
    return [
        Finding(
            "good",
            f"{case.verification.checks:,} gathered entries equal those of a run without reuse, "
            f"bit for bit: {counts}",
        )
    ]
