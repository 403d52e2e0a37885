"""``bench systems``: amounts in the unit that suits them, and whether all is right."""

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv4kv.bench import block_system, slot_system
from dsv4kv.bench.systems import Outcome, Row
from dsv4kv.view.scenarios import systems_page
from tests.view.terminal import shown

ROWS = [
    Row("block tables of 256 requests", "B", 131072.0),
    Row("requests restarted", "requests", 1.0),
    Row("prompt tokens", "tokens", 14_312.0),
    Row("block tables", "B", 152.0),
    Row("lru: blocks evicted", "blocks", 380.0),
    Row("ref_zero: blocks evicted", "blocks", 457.0),
]


@pytest.mark.parametrize("width", [80, 100])
def test_systems(width: int, snapshot: SnapshotAssertion) -> None:
    outcome = Outcome("pools", rows=ROWS, checks={"KV": 1234})
    assert shown(*systems_page([outcome]).answer, width=width) == snapshot


def test_what_failed_is_first() -> None:
    outcome = Outcome("pools", rows=ROWS, checks={"KV": 1234}, failures=["pools: wrong."])
    assert shown(*systems_page([outcome]).answer).startswith(
        "✗ 1 of 1,234 comparisons with the reference failed\n"
    )


def test_two_policies_fit_a_terminal_of_80_columns() -> None:
    """With the longest names and numbers that runs of the shipped settings have."""
    rows = [Row(name, unit, 14_312.0) for name, unit in slot_system._COUNTED.items()]
    rows += [
        Row(f"{policy}: {name}", unit, 16_474.0)
        for policy in ("lru", "ref_zero")
        for name, unit in block_system._COUNTED.items()
    ]
    lines = shown(*systems_page([Outcome("blocks", rows=rows)]).answer, width=80).splitlines()
    assert len([line for line in lines if line.startswith("system ")]) == 1
