"""``bench systems``: counts of each system, and what was compared."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dsv4kv.view.quantity import size
from dsv4kv.view.table import Columns, Finding, Number, Part, Table

if TYPE_CHECKING:
    from dsv4kv.bench.systems.workload import Outcome


def report_systems(outcomes: "Sequence[Outcome]") -> Iterator[Part]:
    """Whether all outputs are right, and a row per quantity, with the policies side by side."""
    compared = sum(sum(outcome.checks.values()) for outcome in outcomes)
    wrong = sum(len(outcome.failures) for outcome in outcomes)
    names = ", ".join(outcome.system for outcome in outcomes)
    if wrong:
        yield Finding("bad", f"{wrong:,} of {compared:,} comparisons with the reference failed")
    else:
        sentence = f"all {compared:,} comparisons with the reference are equal: {names}"
        yield Finding("good", sentence)
    amounts: dict[tuple[str, str], dict[str, Number]] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            policy, _, name = row.quantity.rpartition(": ")
            amounts.setdefault((outcome.system, name), {})[policy] = _amount(row.value, row.unit)
    policies = dict.fromkeys(policy for found in amounts.values() for policy in found)
    columns: Columns = [
        ("system", lambda row: row[0][0]),
        ("quantity", lambda row: row[0][1]),
        *((policy or "amount", partial(_cell, policy)) for policy in policies),
    ]
    yield from ("", Table("Systems", columns, list(amounts.items()), keys=2))


def _cell(policy: str, row: tuple[object, dict[str, Number]]) -> Number:
    return row[1].get(policy, Number(""))


def _amount(value: float, unit: str) -> Number:
    """Bytes with their unit; a count is of what its quantity names."""
    if unit == "B":
        return size(value)
    return Number(f"{value:,.0f}")
