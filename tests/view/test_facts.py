"""Facts of a run where they are unusual or absent; goldens of whole runs have the others."""

from typing import Any

import pytest

from dsv4kv.runs.schema import RunRecord
from dsv4kv.view.facts import header, judge_results, judge_status
from dsv4kv.view.table import Finding
from tests.runs.records import (
    make_cache,
    make_case,
    make_failed_case,
    make_pool,
    make_record,
    make_totals,
)


def facts_of(record: RunRecord) -> dict[str, str]:
    return dict(header(record).rows)


@pytest.mark.parametrize("config", [{"workload": 1.0}, {"measure": {"threads": "x"}}])
def test_a_configuration_of_other_shapes_is_shown(config: dict[str, object]) -> None:
    assert header(make_record(make_case(config=config), trace_source=None))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("dsv4kv bench 'a b.yaml' --set x=1", "dsv4kv bench 'a b.yaml' --set x=1"),
        ("dsv4kv bench x; touch y $(z)", "dsv4kv bench 'x;' touch y '$(z)'"),
        ("dsv4kv $(y) 'x", None),
        ("bash -c 'touch x'", None),
        ("reboot", None),
    ],
)
def test_a_recorded_command_runs_no_other(line: str, shown: str | None) -> None:
    assert facts_of(make_record(make_case(), reproduce=line)).get("repeat") == shown


def problems(**changes: Any) -> list[str]:
    case = make_case(**changes)
    return [found.sentence for found in judge_results(case) if found.is_problem]


def test_problems_of_a_case() -> None:
    assert problems() == []
    (two_lines,) = judge_status(make_failed_case("no room\nat all"))
    assert two_lines.sentence == "failed: no room; at all"
    assert judge_status(make_failed_case("no room")) == [Finding("bad", "failed: no room")]
    assert list(judge_results(make_failed_case())) == []
    assert "2, longer than the cache" in problems(totals=make_totals(rejected=2), cache=None)[0]
    assert problems(totals=make_totals(blocks_left=1)) == [
        "blocks not freed at the end: 1; the cache leaks"
    ]
    pool = make_pool("main", "csa", 2, 256, 19_008, allocated_bytes=9_732_097)
    (gap,) = problems(cache=make_cache(pools=[pool]))
    assert gap.endswith("main of csa layers +1 B")
