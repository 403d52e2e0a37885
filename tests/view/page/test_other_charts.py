from dataclasses import replace

import pytest
from matplotlib.colors import to_hex

from dsv4kv.measure.verdict import Judgement, Verdict
from dsv4kv.view.charts.bars import ComparedRow, kernels_chart, pools_chart, ratios_chart
from dsv4kv.view.charts.figure import LIGHT, fit, plain_number
from dsv4kv.view.charts.sweep import Metric, Point, sweep_chart
from dsv4kv.view.charts.time import Span, Track, held_chart, spans_sentence, telemetry_chart
from tests.runs.records import make_cache, make_pool
from tests.view.page.drawn import axes_of, only_axes
from tests.view.page.pages import make_compared, make_judgement, make_memory, make_profile


def points(values: dict[tuple[float, str], float]) -> list[Point]:
    return [Point(x, line, y, (y - 1, y + 1)) for (x, line), y in values.items()]


def sweep(values: dict[tuple[float, str], float]) -> Metric:
    return Metric("steps", "Step", points(values), lambda value: f"{value:g}")


def test_a_sweep_has_a_line_for_each_other_setting_with_intervals() -> None:
    metric = sweep({(1, "a"): 5, (2, "a"): 9, (1, "b"): 6, (2, "b"): 7})
    chart = sweep_chart(metric, "batch")
    axes = only_axes(chart)
    lines = {container.get_label(): container.lines[0] for container in axes.containers}
    assert {name: list(line.get_ydata()) for name, line in lines.items()} == {
        "a": [5, 9],
        "b": [6, 7],
    }
    first = axes.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert list(first) == [4, 6]
    assert chart.description == "4 cases between 5 at batch 1, a and 9 at batch 2, a."


def test_an_interval_never_leaves_the_axes() -> None:
    axes = only_axes(sweep_chart(sweep({(1, ""): 5, (2, ""): 5.5}), "batch"))
    assert axes.get_ylim()[1] > 6.5
    assert axes.get_ylim()[0] == 0


def test_settings_far_apart_stand_by_their_logarithms_and_are_named() -> None:
    axes = only_axes(sweep_chart(sweep({(64, ""): 1, (1, ""): 2, (8, ""): 3}), "batch"))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8", "64"]
    first, second, third = axes.get_xticks()
    assert second - first == pytest.approx(third - second)
    near = only_axes(sweep_chart(sweep({(2, ""): 1, (3, ""): 2}), "batch"))
    assert list(near.get_xticks()) == [2, 3]


def test_an_axis_of_many_settings_names_as_many_as_there_is_room_for() -> None:
    axes = only_axes(sweep_chart(sweep({(n, ""): n for n in range(100, 201)}), "batch"))
    named = [label.get_text() for label in axes.get_xticklabels()]
    assert named[:3] == ["100", "112", "124"]
    assert len(named) == 9
    (line,) = (container.lines[0] for container in axes.containers)
    assert len(line.get_xdata()) == 101


def test_pools_are_bars_from_the_largest_with_a_tick_where_the_plan_said() -> None:
    pools = [
        make_pool("main", "csa", 1, 2, 100, predicted_bytes=250),
        make_pool("state", "hca", 1, 4, 100),
        make_pool("tables", "all", 1, 1, 8),
    ]
    chart = pools_chart(make_cache(pools=pools))
    axes = only_axes(chart)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "state hca",
        "main csa",
        "tables",
    ]
    assert [bar.get_width() for bar in axes.patches] == [400, 200, 8]
    ticks = [c.get_segments()[0][0][0] for c in axes.collections]
    assert ticks == [400, 250, 8]
    assert chart.description == "608 B allocated: state hca 400 B, main csa 200 B, tables 8 B."


def test_held_memory_is_stacked_and_its_peak_is_that_of_all_pools_together() -> None:
    chart = held_chart(make_memory())
    assert chart.description == (
        "176 MiB at the peak in main, state. At most 80 of 100 blocks, 2 of 2 slots, "
        "70 of 100 cached blocks."
    )
    stack, _ = axes_of(chart)
    tops = [area.get_paths()[0].get_extents().y1 for area in stack.collections]
    assert tops == [160 * 2**20, 176 * 2**20]


def test_what_is_held_is_also_a_share_of_what_there_is() -> None:
    _, shares = axes_of(held_chart(make_memory()))
    assert [list(line.get_ydata()) for line in shares.lines] == [
        [0, 60, 80],
        [50, 100, 50],
        [0, 30, 70],
    ]


def test_a_series_of_one_point_can_be_drawn() -> None:
    memory = make_memory()
    first = [each.model_copy(update={"held": each.held[:1]}) for each in memory.units]
    chart = held_chart(memory.model_copy(update={"at_ns": [0], "units": first}))
    assert len(axes_of(chart)) == 2


def test_throttled_stretches_are_shaded_through_every_panel() -> None:
    tracks = [Track("SM clock", "MHz", [0, 1, 2], [1980, None, 1410])] * 2
    chart = telemetry_chart(tracks, [Span(0.5, 1.5, "power cap")])
    for axes in axes_of(chart):
        (shade,) = axes.patches
        assert (shade.get_x(), shade.get_width()) == (0.5, 1.0)
        assert to_hex(shade.get_facecolor()) == LIGHT["heat"]
        assert [text.get_text() for text in axes.texts] == ["SM clock", "1,410 to 1,980 MHz"]


def test_reasons_are_told_with_the_time_they_took_together() -> None:
    spans = [Span(0, 1, "power cap"), Span(2, 2.5, "power cap"), Span(3, 4, "power brake")]
    assert spans_sentence(spans) == "Shaded: power cap for 1.50 s, power brake for 1.00 s."
    assert spans_sentence([]) == "Nothing slowed it down."


def test_a_comparison_draws_each_change_with_its_interval_beside_the_floor() -> None:
    chart = ratios_chart(make_compared())
    axes = only_axes(chart)
    spans = [tuple(c.get_segments()[0][:, 0]) for c in axes.collections]
    assert spans[0] == pytest.approx((7, 9))
    assert spans[1] == pytest.approx((-11, -9))
    assert to_hex(axes.collections[0].get_edgecolor()[0]) == LIGHT["bad"]
    (band,) = axes.patches
    assert (band.get_x(), band.get_width()) == (-1, 2)
    assert "gather_topk csa +8.0 %  slower" in chart.description


def test_an_unclear_row_far_from_the_others_is_an_arrow_at_the_edge() -> None:
    rows = [ComparedRow(f"row {n}", make_judgement(Verdict.SAME, 1.02)) for n in range(5)]
    far = ComparedRow("far", make_judgement(Verdict.UNCLEAR, 3.0))
    back = ComparedRow("back", make_judgement(Verdict.UNCLEAR, 0.4))
    axes = only_axes(ratios_chart(replace(make_compared(), rows=[*rows, far, back])))
    reach = axes.get_xlim()[1]
    assert axes.get_xlim()[0] == -reach
    assert 3 < reach < 20
    arrows = {line.get_marker(): line.get_xdata()[0] for line in axes.lines
              if line.get_marker() in "<>"}  # fmt: skip
    assert arrows == {">": pytest.approx(reach * 0.985), "<": pytest.approx(-reach * 0.985)}
    assert (
        "far +200.0 %  unclear" in ratios_chart(replace(make_compared(), rows=[far])).description
    )


def test_a_row_that_is_slower_or_faster_is_never_cut_off() -> None:
    rows = [ComparedRow(f"row {n}", make_judgement(Verdict.SAME, 1.0)) for n in range(9)]
    for verdict, ratio in ((Verdict.SLOWER, 3.0), (Verdict.FASTER, 0.4)):
        far = ComparedRow("far", make_judgement(verdict, ratio))
        axes = only_axes(ratios_chart(replace(make_compared(), rows=[*rows, far])))
        assert axes.get_xlim()[1] > abs(ratio - 1) * 100 + 1
        assert not [line for line in axes.lines if line.get_marker() in "<>"]


def test_a_change_without_an_interval_is_a_hollow_mark() -> None:
    compared = make_compared()
    unknown = ComparedRow("step", Judgement(Verdict.UNCLEAR, 0.9999, None, "too few"))
    chart = ratios_chart(compared.__class__(**vars(compared) | {"rows": [unknown]}))
    axes = only_axes(chart)
    mark, (segment,) = axes.lines[1], axes.collections[0].get_segments()
    assert segment[0][0] == segment[1][0] == 0
    assert mark.get_markerfacecolor() == LIGHT["paper"]
    assert "step +0.0 %" in chart.description


def test_kernels_beyond_the_longest_are_one_bar_and_the_shares_are_of_all() -> None:
    profile = make_profile(20)
    assert profile.table is not None
    chart = kernels_chart(profile.table)
    axes = only_axes(chart)
    widths = [bar.get_width() for bar in axes.patches]
    assert len(widths) == 15
    assert sum(widths) == sum(row.total_ns for row in profile.table.kernels)
    assert axes.get_yticklabels()[-1].get_text() == "6 others"


def test_a_machine_that_tells_no_limits_is_not_said_to_be_free_of_them() -> None:
    chart = telemetry_chart([Track("load", "processes", [0, 1], [1, 2])], [])
    assert chart.description == "load over time."


def test_long_names_of_lines_and_settings_leave_room_for_the_chart() -> None:
    long = "/folder/of/traces" * 20 + "/last.jsonl"
    chart = sweep_chart(sweep({(1, long): 5, (2, long): 9, (1, "b"): 6}), "batch")
    label = only_axes(chart).containers[0].get_label()
    assert len(label) <= 50
    assert label.startswith("…")
    assert label.endswith("/last.jsonl")


def test_a_long_name_keeps_its_end_and_a_short_one_is_left() -> None:
    assert [fit("abcdef", letters) for letters in (6, 5, 2)] == ["abcdef", "…cdef", "…f"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.05, "0.05"),
        (4000.0, "4,000"),
        (999_999.0, "999,999"),
        (1.5e6, "1.5 M"),
        (2e9, "2,000 M"),
    ],
)
def test_ticks_are_written_without_powers_of_ten(value: float, text: str) -> None:
    assert plain_number(value) == text


def test_no_time_falls_by_more_than_all_of_it() -> None:
    huge = ComparedRow("a", Judgement(Verdict.SLOWER, 9.0, (8.0, 10.0)))
    axes = only_axes(ratios_chart(replace(make_compared(), rows=[huge])))
    low, high = axes.get_xlim()
    assert high > 900
    assert -110 < low < -100


def test_of_very_many_rows_those_that_changed_are_drawn_in_the_tables_order() -> None:
    same = [ComparedRow(f"same {n}", make_judgement(Verdict.SAME, 1.001)) for n in range(300)]
    slower = ComparedRow("slower", make_judgement(Verdict.SLOWER, 1.02))
    far = ComparedRow("far", make_judgement(Verdict.UNCLEAR, 0.5))
    rows = [*same[:150], slower, *same[150:], far]
    chart = ratios_chart(replace(make_compared(), rows=rows))
    names = [label.get_text() for label in only_axes(chart).get_yticklabels()]
    assert len(names) == 100 + 1  # and the mean
    assert names[-3:] == ["slower", "far", "geometric mean"]
    assert chart.title.endswith(": 100 of 302 rows, those that changed most")
