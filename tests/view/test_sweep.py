"""The table of a sweep."""

import re

from dsv4kv.measure.statistics import estimate_rate
from dsv4kv.runs.quantities import axis_names, axis_text
from dsv4kv.view.cells import format_estimate
from dsv4kv.view.record import sweep_table
from tests.runs.records import (
    make_case,
    make_failed_case,
    make_latency,
    make_operation,
    make_sweep_cases,
)
from tests.view.terminal import shown


def last_row(text: str) -> list[str]:
    return re.split(r"\s{2,}", text.splitlines()[-1].strip())


def test_every_case_is_a_row() -> None:
    rows = shown(sweep_table(make_sweep_cases())).splitlines()[-5:]
    settings = [row.split()[:2] for row in rows]
    assert settings == [["128", "1"], ["128", "8"], ["256", "1"], ["256", "8"], ["256", "64"]]


def test_the_gather_rate_is_that_of_all_gathers() -> None:
    operations = [
        make_operation("gather_topk", gbps=2.0),
        make_operation("gather_all", gbps=8.0),
        make_operation("flush", gbps=100.0),
    ]
    two = operations[:2]
    rate = estimate_rate(
        [size for each in two for size in each.bytes],
        [time for each in two for time in each.samples_ns],
    )
    case = make_case(axis={"cache.state": "ring"}, operations=operations)
    assert last_row(shown(sweep_table([case])))[4] == format_estimate(rate)


def test_a_case_that_failed_keeps_its_row_without_numbers() -> None:
    failed = make_failed_case(axis={"cache.block_tokens": 256})
    cells = last_row(shown(sweep_table([make_case(axis={"cache.block_tokens": 128}), failed])))
    assert cells == ["256", "–", "–", "–", "–", "–", "–", "✗"]


def test_a_case_that_was_stopped_is_marked() -> None:
    case = make_case(axis={"cache.state": "ring"}, status="incomplete")
    assert last_row(shown(sweep_table([case])))[-1] == "!"


def test_a_bookkeeping_case_has_no_gather_rate() -> None:
    case = make_case(axis={"cache.state": "ring"}, operations=[], memcpy=None)
    assert last_row(shown(sweep_table([make_case(axis=case.axis), case])))[4] == "–"
    assert "gather" not in shown(sweep_table([case]))


def test_steps_over_long_contexts_are_in_milliseconds() -> None:
    cases = [
        make_case(axis={"a.b": i}, latencies=[make_latency("step", median_ns=step_ns)])
        for i, step_ns in enumerate((20_000_000, 2_000_000_000))
    ]
    assert "step, median ms" in shown(sweep_table(cases))
    assert last_row(shown(sweep_table(cases)))[1].startswith("2,0")
    assert "step, median µs" in shown(sweep_table(cases[:1]))


def test_a_setting_is_named_by_its_last_part() -> None:
    case = make_case(axis={"cache.block_tokens": 1, "workload.concurrency": 2})
    assert list(axis_names([case]).values()) == ["block_tokens", "concurrency"]


def test_settings_that_share_their_last_part_are_named_in_full() -> None:
    axis = {"workload.synthetic.input.mean": 1, "workload.synthetic.output.mean": 2, "seed": 3}
    assert list(axis_names([make_case(axis=axis)]).values()) == [*list(axis)[:2], "seed"]


def test_settings_are_written_as_in_yaml() -> None:
    axis = {"a.state": "ring", "a.layers": [1, 2], "a.hadamard": True, "a.num_blocks": None}
    assert axis_text(make_case(axis=axis)) == (
        "state=ring, layers=[1, 2], hadamard=true, num_blocks=null"
    )
