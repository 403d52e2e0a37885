"""Records of several launches, told: medians over launches, and launches that went wrong."""

from syrupy.assertion import SnapshotAssertion

from dsv4kv.measure.statistics import summarize
from dsv4kv.runs.quantities import by_quantity, list_measured
from dsv4kv.runs.schema import Launch
from dsv4kv.view.case import launches_table
from tests.compare.launched import make_launched_case, make_launched_record, make_launches
from tests.runs.records import make_case, make_record
from tests.view.terminal import shown, told


def lost(launch: int, status: str, error: str) -> Launch:
    return make_launches(7)[launch].model_copy(update={"status": status, "error": error})


def test_a_run_of_seven_launches_is_told_by_the_median_of_launch_medians(
    snapshot: SnapshotAssertion,
) -> None:
    assert told(make_launched_record()) == snapshot


def test_launches_that_went_wrong_are_rows_with_their_reason(
    snapshot: SnapshotAssertion,
) -> None:
    launches = make_launches(7)
    launches[2] = lost(2, "crashed", "killed by SIGSEGV")
    launches[5] = lost(5, "timeout", "still ran after 60 s")
    cases = [make_launched_case(launch, {}, 0) for launch in (0, 1, 3, 4, 6)]
    record = make_launched_record(cases=cases, launches=launches, status="failed")
    assert told(record) == snapshot


def test_a_sweep_has_a_table_of_launches_per_point() -> None:
    cases = [
        make_launched_case(launch, {}, batch, axis={"workload.batch": batch})
        for launch in range(7)
        for batch in (1, 8)
    ]
    text = told(make_launched_record(cases=cases))
    assert [
        text.count(f"batch={batch}  of 6 of 43 layers; median of launch") for batch in (1, 8)
    ] == [1, 1]
    assert text.count("gather_topk") == 2


def test_a_median_is_that_of_the_launches_and_not_of_their_samples() -> None:
    """One launch of many samples counts as much as one of few."""
    fast = make_launched_case(0, {}, 0)
    slow = [make_launched_case(launch, {"flush": 2.0}, 0) for launch in (1, 2)]
    flush = fast.operations[1]
    many = flush.model_copy(
        update={name: 9 * getattr(flush, name) for name in ("samples_ns", "entries", "bytes")}
    )
    cases = [fast.model_copy(update={"operations": [many]}), *slow]
    measured = list_measured(make_launched_record(cases=cases))
    (group,) = (found for what, found in by_quantity(measured).items() if what.name == "flush")
    middle_ns = summarize([each.median_ns for each in group]).median
    assert middle_ns > 1.5 * group[0].median_ns
    assert f"{middle_ns / 1e3:.0f} ± ?" in shown(launches_table(group, "Medians"))


def test_a_run_of_one_process_is_told_as_ever() -> None:
    assert "Launches" not in told(make_record(make_case()))
