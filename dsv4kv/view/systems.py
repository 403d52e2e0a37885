"""The table of ``bench systems``: counts and call times of each, and what was compared."""

from collections.abc import Iterator, Sequence

from dsv4kv.bench.systems.workload import Outcome
from dsv4kv.measure.statistics import Estimate
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import measured
from dsv4kv.view.table import Number, Part, Table, Text, names, numbers


def report_systems(outcomes: Sequence[Outcome]) -> Iterator[Part]:
    """The table, and below it what was compared."""
    yield systems_table(outcomes)
    yield ""
    yield Text(summary(outcomes), "strong")


def systems_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per quantity."""
    return Table(
        "Three systems",
        [*names("system", "quantity"), *numbers("dsv4kv")],
        [
            (outcome.system, row.quantity, _amount(row.value, row.unit))
            for outcome in outcomes
            for row in outcome.rows
        ],
        note="calls: median and 95 % interval of this run",
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
    """A value, and its unit with the interval, if there is one: columns stay narrow so."""
    value = estimate.value
    if unit == "B" and value >= 1024:
        size, unit = format_bytes(int(value)).split()
        return Number(size, unit)
    if unit != "ns" and value.is_integer():
        return Number(f"{value:,.0f}", unit.removesuffix("s") if value == 1 else unit)
    scale, unit = (
        next(each for each in _TIMES if value < 1e3 * each[0]) if unit == "ns" else (1.0, unit)
    )
    cell = measured(estimate, 1 / scale)
    if estimate.half_width == 0 or not cell.spread:
        return Number(cell.value, unit)
    return Number(cell.value, f"{cell.spread} {unit}")


_TIMES = ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"))
"""Units of time in nanoseconds; none lasts a thousand seconds."""
