"""The table of the systems: durations in the unit that suits them, and the answer last."""

import re

import pytest

from dsv4kv.bench.systems.workload import Checks, Outcome, Row
from dsv4kv.measure.statistics import Estimate
from dsv4kv.view.systems import report_systems
from tests.view.terminal import shown

NUMBER = r"[\d,.]+ ± [\d,.]+"


def systems(width: int, *rows: Row, failures: tuple[str, ...] = ()) -> str:
    checks = Checks({"KV": 1234}, list(failures))
    return shown(*report_systems([Outcome("pools", list(rows), checks)]), width=width)


ROWS = [
    Row("release_request, 64 blocks, 61 layers", "ns", Estimate(84_379.5, 41_378.5)),
    Row("prepare 256 prompts of 8,192", "ns", Estimate(1_665_713_000.0, 629_641_000.0)),
    Row("block tables of 256 requests", "B", Estimate(131072.0, 0.0)),
    Row("requests restarted", "requests", Estimate(1.0, 0.0)),
    Row("memory of a cached token", "B", Estimate(4.04, 0.0)),
]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_numbers_stay_in_one_piece_with_their_units(width: int) -> None:
    text = systems(width, *ROWS)
    assert len(re.findall(rf"{NUMBER} (?:ns|µs|ms|s)\b", text)) == 2
    for part in ("128 KiB", "1 request", "4.04 B", "1.7"):
        assert part in text
    assert max(map(len, text.splitlines())) <= width


def test_the_answer_is_the_last_line() -> None:
    assert systems(100, *ROWS).splitlines()[-1] == (
        "All 1,234 comparisons with the reference are equal (pools)."
    )
    told = systems(100, failures=("pools: wrong.",)).splitlines()[-1]
    assert told == "1 of 1,234 comparisons with the reference failed (pools)."
