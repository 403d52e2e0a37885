"""``bench systems``: counts of each system, and what was compared."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dsv4kv.units import format_bytes
from dsv4kv.view.quantity import format_number
from dsv4kv.view.table import Finding, Number, Part, Table

if TYPE_CHECKING:
    from dsv4kv.bench.systems.workload import Outcome


def report_systems(outcomes: "Sequence[Outcome]") -> Iterator[Part]:
    """Whether all outputs are right, and a row per quantity."""
    compared = sum(sum(outcome.checks.values()) for outcome in outcomes)
    wrong = sum(len(outcome.failures) for outcome in outcomes)
    names = ", ".join(outcome.system for outcome in outcomes)
    if wrong:
        yield Finding("bad", f"{wrong:,} of {compared:,} comparisons with the reference failed")
    else:
        sentence = f"all {compared:,} comparisons with the reference are equal: {names}"
        yield Finding("good", sentence)
    yield ""
    yield Table(
        "Three systems",
        [
            ("system", lambda row: row[0]),
            ("quantity", lambda row: row[1].quantity),
            ("dsv4kv", lambda row: _amount(row[1].value, row[1].unit)),
        ],
        [(outcome.system, row) for outcome in outcomes for row in outcome.rows],
        keys=2,
    )


def _amount(value: float, unit: str) -> Number:
    if unit == "B" and value >= 1024:
        size, unit = format_bytes(value).split()
        return Number(size, unit)
    if value.is_integer():
        return Number(f"{value:,.0f}", unit.removesuffix("s") if value == 1 else unit)
    return Number(format_number(value), unit)
