"""``bench systems``: amounts in the unit that suits them, and whether all is right."""

import pytest
from syrupy.assertion import SnapshotAssertion

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
