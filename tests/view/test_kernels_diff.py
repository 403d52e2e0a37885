"""Two profiles side by side."""

from pathlib import Path

import pytest

from dsv4kv.runs.profile import KernelTable
from dsv4kv.view.profile_diff import Change, compare_tables, report_diff
from tests.measure.profilers.exports import two_replays
from tests.runs.kernel_profiles import from_kineto, from_nsys
from tests.view.terminal import shown


@pytest.fixture
def before(tmp_path: Path) -> KernelTable:
    return from_nsys(tmp_path)


@pytest.fixture
def after(tmp_path: Path) -> KernelTable:
    """The gather takes half as long, the insert is gone, and something is new."""
    export = two_replays()
    kernels = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]
    gone = export.string("window_insert")
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"] = [k for k in kernels if k["shortName"] != gone]
    for kernel in kernels:
        if kernel["shortName"] == export.string("gather_topk"):
            kernel["end"] -= 5_000
            kernel["demangledName"] = export.string("void dsv::gather_topk<long>(long*)")
    export.kernel("brand_new", 101, 170_000, 172_000)
    (tmp_path / "after").mkdir()
    return from_nsys(tmp_path / "after", export)


def told(before: KernelTable, after: KernelTable, most: int | None = None) -> str:
    parts = report_diff(before, after, ("a.json", "b.json"), most=most)
    return "\n".join(shown(part) for part in parts)


def test_changes_are_per_step_the_largest_first(before: KernelTable, after: KernelTable) -> None:
    changes = compare_tables(before, after)
    assert changes[:3] == [
        Change("window_insert", "insert", 10_000, None, 1, 0),
        Change("gather_topk", "gather", 10_000, 5_000, 1, 1),
        Change("brand_new", "other", None, 1_000, 0, 0.5),
    ]
    assert {change.difference_ns for change in changes[3:]} == {0}


def test_kernels_that_came_and_went_and_changed_are_told(
    before: KernelTable, after: KernelTable
) -> None:
    lines = told(before, after).splitlines()
    found = {line.split()[0]: line.split()[2:] for line in lines if len(line.split()) > 5}
    assert found["window_insert"] == ["10.0", "–", "-10.00", "gone", "1", "→", "0"]
    assert found["gather_topk"] == ["10.0", "5.00", "-5.00", "-50.0", "1", "→", "1"]
    assert found["brand_new"] == ["–", "1.00", "+1.00", "new", "0", "→", "0.5"]


def test_a_profile_and_itself_do_not_differ(before: KernelTable) -> None:
    assert {change.difference_ns for change in compare_tables(before, before)} == {0}
    assert "1.00 ± ? times as long" in told(before, before)


def test_a_lopsided_interval_of_a_step_or_their_quotient_is_no_plus_and_minus(
    before: KernelTable,
) -> None:
    assert before.steps is not None
    spans = [100_000] * 4 + [101_000] * 4 + [900_000] * 2
    steps = before.steps.model_copy(update={"span_ns": spans})
    slow = before.model_copy(update={"steps": steps})
    (step,) = [line for line in told(slow, slow).splitlines() if "a step:" in line]
    assert step == ("· a step: 101 -1/+799 µs → 101 -1/+799 µs, 1 -1/+8 times as long")


def test_what_makes_them_unlike_is_told_first(before: KernelTable, tmp_path: Path) -> None:
    first, *_ = told(before, from_kineto(tmp_path)).splitlines()
    assert first == "! different profilers: nsys, kineto"


def test_different_gpus_are_told(before: KernelTable) -> None:
    other = before.model_copy(update={"devices": ["NVIDIA H200"]})
    assert "! different GPUs: unknown, NVIDIA H200" in told(before, other)


def test_a_profile_without_steps_makes_it_whole_against_whole(before: KernelTable) -> None:
    whole = before.model_copy(update={"num_steps": 0, "steps": None})
    changes = compare_tables(before, whole)
    assert {change.difference_ns for change in changes} == {0}
    assert "only one of them has steps" in told(before, whole)


def test_changes_beyond_the_most_are_counted(before: KernelTable) -> None:
    assert "and 3 more: --full shows all" in told(before, before, most=2)
