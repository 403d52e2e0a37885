"""The three systems side by side: every quantity next to the plain re-statement's."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dsv4kv.measure.statistics import Estimate
from dsv4kv.systems.outcome import Outcome, Row
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import ABSENT, format_estimate, new_table

_TITLE = "Three systems"
_NOTE = "calls: median ± 95 % interval of this run, in turns with a plain re-statement"


def render_systems(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print the table, and below it what was compared."""
    console.print(systems_table(outcomes))
    console.print(summary(outcomes))


def systems_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per quantity."""
    table = new_table(_TITLE, _NOTE)
    table.add_column("system")
    table.add_column("quantity")
    for header in ("dsv4kv", "plain", "% of plain"):
        table.add_column(header, justify="right")
    for outcome in outcomes:
        for row in outcome.rows:
            table.add_row(outcome.system, row.quantity, *_cells(row))
        table.add_section()
    return table


def summary(outcomes: Sequence[Outcome]) -> str:
    """The answer in a line: how much was compared, and whether it was right."""
    compared = sum(sum(outcome.checks.passed.values()) for outcome in outcomes)
    wrong = sum(len(outcome.checks.failures) for outcome in outcomes)
    names = ", ".join(outcome.system for outcome in outcomes)
    if wrong:
        return f"{wrong:,} of {compared:,} comparisons with the reference failed ({names})."
    return f"All {compared:,} comparisons with the reference are equal ({names})."


def _cells(row: Row) -> tuple[str, str, str]:
    ours = _amount(row.ours, row.unit)
    plain = _amount(row.plain, row.unit) if row.plain else ABSENT
    return ours, plain, format_estimate(row.share, 100) if row.share else ABSENT


def _amount(estimate: Estimate, unit: str) -> str:
    if unit == "ns":
        return f"{format_estimate(estimate, 1e-3)} µs"
    if unit == "B" and estimate.value >= 1024:
        return format_bytes(int(estimate.value))
    if estimate.value.is_integer():
        return f"{estimate.value:,.0f} {unit}"
    return f"{format_estimate(estimate)} {unit}"
