"""``bench systems``: durations in the unit that suits them, and whether all is right."""

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv4kv.bench.systems.workload import Outcome, Row
from dsv4kv.runs.statistics import Estimate
from dsv4kv.view.systems import report_systems
from tests.view.terminal import shown

ROWS = [
    Row("release_request, 64 blocks, 61 layers", "ns", Estimate(84_379.5, 41_378.5)),
    Row("prepare 256 prompts of 8,192", "ns", Estimate(1_665_713_000.0, 629_641_000.0)),
    Row("block tables of 256 requests", "B", Estimate(131072.0, 0.0)),
    Row("requests restarted", "requests", Estimate(1.0, 0.0)),
    Row("memory of a cached token", "B", Estimate(4.04, 0.0)),
]


@pytest.mark.parametrize("width", [80, 100])
def test_systems(width: int, snapshot: SnapshotAssertion) -> None:
    outcome = Outcome("pools", rows=ROWS, passed={"KV": 1234})
    assert shown(*report_systems([outcome]), width=width) == snapshot


def test_what_failed_is_first() -> None:
    outcome = Outcome("pools", rows=ROWS, passed={"KV": 1234}, failures=["pools: wrong."])
    assert shown(*report_systems([outcome])).startswith(
        "✗ 1 of 1,234 comparisons with the reference failed\n"
    )
