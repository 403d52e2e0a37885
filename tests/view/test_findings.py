"""What a run finds out about itself."""

from typing import Any

import pytest

from dsv4kv.runs.schema import Verification
from dsv4kv.view.findings import judge_results, judge_status
from dsv4kv.view.table import Finding
from tests.runs.records import make_cache, make_case, make_failed_case, make_pool, make_totals
from tests.view.terminal import shown


def problems(**changes: Any) -> list[Finding]:
    return [finding for finding in judge_results(make_case(**changes)) if finding.is_problem]


def test_a_good_case_has_no_problems() -> None:
    assert judge_status(make_case()) == []
    assert judge_results(make_case()) == [
        Finding("good", "23.6 MiB allocated, as predicted to the byte"),
        Finding("good", "120 outputs equal the reference: gather_topk 80, window_insert 40"),
    ]


def test_a_failed_case_tells_its_sentence() -> None:
    assert judge_status(make_failed_case("no room")) == [Finding("bad", "failed: no room")]
    assert judge_results(make_failed_case()) == []


def test_a_stopped_case_says_what_its_numbers_cover() -> None:
    (finding,) = judge_status(make_case(status="incomplete"))
    assert finding.level == "warning"
    assert finding.sentence.startswith("incomplete: stopped before the end")


def test_rejected_requests_are_a_warning_with_the_limit() -> None:
    assert problems(totals=make_totals(rejected=2)) == [
        Finding("warning", "rejected requests: 2, longer than 32,768 tokens or the pool")
    ]


def test_blocks_held_at_the_end_are_a_leak() -> None:
    (finding,) = problems(totals=make_totals(blocks_left=3))
    assert finding == Finding("bad", "blocks still held at the end: 3; the cache leaks")


def test_memory_that_differs_from_the_plan_is_told_by_pool() -> None:
    pools = [
        make_pool("main", "csa", 1, 2, 100, allocated_bytes=212),
        make_pool("state", "hca", 1, 2, 100, allocated_bytes=188),
    ]
    assert problems(cache=make_cache(pools=pools)) == [
        Finding(
            "bad",
            "400 B allocated, 400 B predicted: "
            "main of csa layers +12 B, state of hca layers -12 B",
        )
    ]


def test_without_pools_memory_is_not_judged() -> None:
    assert all("allocated" not in f.sentence for f in judge_results(make_case(cache=None)))
    assert problems(cache=make_cache(pools=[])) == []


def test_a_run_without_checks_says_so() -> None:
    verification = Verification(checks=0, by_operation={}, failures=[])
    findings = judge_results(make_case(verification=verification))
    assert findings[-1] == Finding("note", "no output was compared with the reference")


@pytest.mark.parametrize(("failures", "lines"), [(1, 2), (20, 21), (21, 22), (500, 22)])
def test_every_difference_is_a_line_up_to_twenty(failures: int, lines: int) -> None:
    verification = Verification(
        checks=600, by_operation={"flush": 600}, failures=[f"row {i}" for i in range(failures)]
    )
    found = problems(verification=verification)
    assert [finding.level for finding in found] == ["bad"] * lines
    assert found[0].sentence == f"{failures} of 600 outputs differ from the reference:"
    assert found[1].sentence == "row 0"
    if failures > 20:
        assert found[-1].sentence == f"and {failures - 20} more, in the record"


@pytest.mark.parametrize(
    ("level", "mark"), [("good", "✓"), ("note", "·"), ("warning", "!"), ("bad", "✗")]
)
def test_every_level_has_a_mark_that_needs_no_colour(level: Any, mark: str) -> None:
    assert shown(Finding(level, "it is so")) == f"{mark} it is so"
