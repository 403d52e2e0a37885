"""``bench systems``: every quantity of the three systems next to the plain re-statement's."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from dsv4kv.measure.statistics import Estimate
from dsv4kv.systems.outcome import Outcome
from dsv4kv.units import format_bytes
from dsv4kv.view.quantity import percent, quantity
from dsv4kv.view.table import ABSENT, Finding, Number, Part, Table, Text

_TIMES = ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"))


def report_systems(outcomes: Sequence[Outcome]) -> Iterator[Part]:
    """Whether all outputs are right, how times compare, and the table."""
    compared = sum(sum(outcome.checks.passed.values()) for outcome in outcomes)
    wrong = sum(len(outcome.checks.failures) for outcome in outcomes)
    names = ", ".join(outcome.system for outcome in outcomes)
    if wrong:
        yield Finding("bad", f"{wrong:,} of {compared:,} comparisons with the reference failed")
    else:
        yield Finding(
            "good", f"all {compared:,} comparisons with the reference are equal: {names}"
        )
    shares = sorted(
        row.share.value * 100
        for outcome in outcomes
        for row in outcome.rows
        if row.unit == "ns" and row.share
    )
    if shares:
        yield Text(
            f"{len(shares)} calls take {shares[0]:.3g} to {shares[-1]:.3g} % of the plain "
            f"re-statement's time, {median(shares):.3g} % at the median.",
            "strong",
        )
    yield from ("", systems_table(outcomes))


def systems_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per quantity."""
    return Table(
        "Three systems",
        [
            ("system", lambda row: row[0]),
            ("quantity", lambda row: row[1].quantity),
            ("dsv4kv", lambda row: _amount(row[1].ours, row[1].unit)),
            ("plain", lambda row: _amount(row[1].plain, row[1].unit)),
            ("% of plain", lambda row: percent(row[1].share)),
        ],
        [(outcome.system, row) for outcome in outcomes for row in outcome.rows],
        note="calls: median and 95 % interval of this run, interleaved with a plain re-statement",
        keys=2,
    )


def _amount(estimate: Estimate | None, unit: str) -> Number:
    """A value, and its unit with the interval, so that columns stay narrow."""
    if estimate is None:
        return Number(ABSENT)
    value = estimate.value
    if unit == "B" and value >= 1024:
        size, unit = format_bytes(value).split()
        return Number(size, unit)
    if unit != "ns" and value.is_integer():
        return Number(f"{value:,.0f}", unit.removesuffix("s") if value == 1 else unit)
    scale = 1.0
    if unit == "ns":
        scale, unit = next(each for each in _TIMES if value < 1e3 * each[0])
    cell = quantity(estimate, 1 / scale)
    return replace(cell, spread=f"{cell.spread} {unit}".strip())
