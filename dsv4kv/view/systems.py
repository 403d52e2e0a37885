"""The three systems side by side: every quantity next to the plain re-statement's."""

from collections.abc import Iterator, Sequence

from dsv4kv.measure.statistics import Estimate
from dsv4kv.systems.outcome import Outcome
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import measured
from dsv4kv.view.table import ABSENT, Number, Part, Table, names, numbers


def tell_systems(outcomes: Sequence[Outcome]) -> Iterator[Part]:
    """The table, and below it what was compared."""
    yield systems_table(outcomes)
    yield ""
    yield summary(outcomes)


def systems_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per quantity."""
    return Table(
        "Three systems",
        [*names("system", "quantity"), *numbers("dsv4kv", "plain", "% of plain")],
        [
            (
                outcome.system,
                row.quantity,
                _amount(row.ours, row.unit),
                _amount(row.plain, row.unit) if row.plain else ABSENT,
                measured(row.share, 100),
            )
            for outcome in outcomes
            for row in outcome.rows
        ],
        note="calls: median ± 95 % interval of this run, in turns with a plain re-statement",
        keys=2,
    )


def summary(outcomes: Sequence[Outcome]) -> str:
    """The answer in a line: how much was compared, and whether it was right."""
    compared = sum(sum(outcome.checks.passed.values()) for outcome in outcomes)
    wrong = sum(len(outcome.checks.failures) for outcome in outcomes)
    names = ", ".join(outcome.system for outcome in outcomes)
    if wrong:
        return f"{wrong:,} of {compared:,} comparisons with the reference failed ({names})."
    return f"All {compared:,} comparisons with the reference are equal ({names})."


def _amount(estimate: Estimate, unit: str) -> Number:
    """A value in its unit, which stands behind the interval where there is one."""
    if unit == "B" and estimate.value >= 1024:
        return Number(format_bytes(int(estimate.value)))
    if unit != "ns" and estimate.value.is_integer():
        return Number(f"{estimate.value:,.0f} {unit}")
    scale, unit = (1e-3, "µs") if unit == "ns" else (1.0, unit)
    cell = measured(estimate, scale)
    if not cell.spread:
        return Number(f"{cell.value} {unit}")
    return Number(cell.value, f"{cell.spread} {unit}")
