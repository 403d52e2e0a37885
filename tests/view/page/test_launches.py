from dsv4kv.measure.statistics import Estimate
from dsv4kv.runs.quantities import latency_median
from dsv4kv.runs.schema import Case
from dsv4kv.view.outcomes import across_launches, group_launches, middle_launches
from dsv4kv.view.page.build import launch_section
from tests.runs.records import make_case, make_failed_case, make_record, make_sweep_cases
from tests.view.page.pages import make_launched


def test_launches_of_one_setting_belong_together_in_the_records_order() -> None:
    twice = [*make_sweep_cases(), *make_sweep_cases()]
    groups = group_launches(twice)
    assert [len(group) for group in groups] == [2] * 5
    assert [group[0].axis for group in groups] == [case.axis for case in make_sweep_cases()]


def test_the_middle_launch_stands_for_all_and_of_two_the_faster() -> None:
    cases = make_launched([3_000_000, 1_000_000, 2_000_000, 9_000_000]).cases
    assert middle_launches([cases[:3]]) == [cases[2]]
    assert middle_launches([cases]) == [cases[2]]
    assert middle_launches([[cases[3], cases[0]]]) == [cases[0]]


def test_without_steps_the_first_launch_stands_for_all() -> None:
    failed = [make_failed_case("one"), make_failed_case("two")]
    assert middle_launches([failed]) == [failed[0]]


def step(case: Case) -> Estimate | None:
    return latency_median(case, "step")


def test_a_number_over_launches_is_the_median_of_their_medians() -> None:
    cases = make_launched([1_000_000, 9_000_000, 2_000_000]).cases
    over = across_launches(cases, step)
    middle = step(cases[2])
    assert over is not None
    assert middle is not None
    assert over == Estimate(middle.value, None)  # three launches carry no interval
    assert across_launches(cases[:1], step) == step(cases[0])
    assert across_launches([make_failed_case()], step) is None


def test_launches_have_a_section_of_their_own_and_a_single_run_has_none() -> None:
    (section,) = launch_section(make_launched([1_000_000, 1_100_000]))
    assert len(section.charts[0].figure.axes) == 2
    assert [table.title for table in section.tables.values()] == ["Launches", "Medians"]
    assert list(launch_section(make_record(make_case()))) == []
