"""A comparison on a terminal."""

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dsv4kv.compare.comparison import Comparison
from dsv4kv.compare.reuse import ReuseRow, list_reuse
from dsv4kv.compare.words import (
    INTERVAL,
    conclude,
    describe_change,
    describe_interval,
    describe_side,
    explain,
)
from dsv4kv.measure.statistics import summarize
from dsv4kv.measure.verdict import Judgement, Launches, Verdict
from dsv4kv.report.cells import format_arms, format_number, new_table
from dsv4kv.report.findings import Finding

_STYLES = {
    Verdict.SAME: "green",
    Verdict.FASTER: "bold green",
    Verdict.SLOWER: "bold red",
    Verdict.UNCLEAR: "yellow",
}
LEVELS: dict[Verdict, Literal["good", "warning", "bad"]] = {
    Verdict.SAME: "good",
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.UNCLEAR: "warning",
}
_MOST_LOSSES = 20


def view_comparison(comparison: Comparison, verdict: Verdict) -> Iterator[RenderableType]:
    """Sides, what must be known before reading on, the table, and the conclusion."""
    for side in (comparison.before, comparison.after):
        yield describe_side(side)
    yield from list_warnings(comparison)
    if comparison.rows:
        yield ""
        yield comparison_table(comparison)
        yield Text(explain(comparison), style="dim")
    if rows := list_reuse(comparison.before, comparison.after):
        yield ""
        yield reuse_table(rows)
    yield ""
    yield Finding(LEVELS[verdict], conclude(comparison, verdict))


def list_warnings(comparison: Comparison) -> Iterator[Finding]:
    """What must be known before a comparison is believed."""
    if comparison.forced:
        yield Finding("bad", "the sides are not alike and are compared all the same (--force):")
    for difference in comparison.differences:
        yield Finding("note", str(difference))
    told = [*comparison.losses, *comparison.missing]
    yield from (Finding("warning", sentence) for sentence in told[:_MOST_LOSSES])
    if len(told) > _MOST_LOSSES:
        yield Finding("warning", f"and {len(told) - _MOST_LOSSES} more")


def comparison_table(comparison: Comparison) -> Table:
    """A row per quantity, and the geometric mean."""
    rows, overall = comparison.rows, comparison.overall
    table = new_table("Comparison", f"{comparison.before.name} against {comparison.after.name}")
    swept = any(row.quantity.axis for row in rows)
    for header in (*(("at",) if swept else ()), "quantity"):
        table.add_column(header)
    columns = [
        _add_medians(table, f"{name},\nmedian µs", sides, virtual=comparison.virtual)
        for name, sides in (
            ("before", [row.before for row in rows]),
            ("after", [row.after for row in rows]),
        )
    ]
    for header in ("change", f"{INTERVAL},\n%"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("verdict")
    for index, (row, *cells) in enumerate(zip(rows, *columns, strict=True), start=1):
        names = [*((row.quantity.axis,) if swept else ()), str(row.quantity)]
        end = index == len(rows)
        table.add_row(*names, *cells, *_judged(row.judgement), end_section=end)
    if overall:
        names = [*(("",) if swept else ()), "geometric mean"]
        table.add_row(*names, "", "", *_judged(overall))
    return table


def reuse_table(rows: Sequence[ReuseRow]) -> Table:
    """What replays of both sides saved and lost."""
    table = new_table("Reuse")
    swept = any(row.axis for row in rows)
    for header in (*(("at",) if swept else ()), "of all requests"):
        table.add_column(header)
    for header in ("before", "after"):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(*((row.axis,) if swept else ()), row.name, row.before, row.after)
    return table


def _judged(judgement: Judgement) -> tuple[str, str, Text]:
    verdict = Text(judgement.verdict, _STYLES[judgement.verdict])
    if judgement.reason:
        verdict.append(f" {judgement.reason}", "dim")
    return describe_change(judgement), describe_interval(judgement), verdict


def _add_medians(
    table: Table, header: str, sides: Sequence[Launches], *, virtual: bool
) -> list[str]:
    """A column of medians, with their intervals where times were measured."""
    table.add_column(header, justify="right")
    found = [summarize(launches.values) for launches in sides]
    if virtual:
        return [format_number(each.median / 1e3) for each in found]
    return [format_arms(each, 1e-3) for each in found]
