from typing import Any

import pytest
from matplotlib.patches import StepPatch

from dsv4kv.measure.statistics import summarize
from dsv4kv.view.charts.latency import Samples, distribution_chart, order_chart
from tests.runs.records import make_latency
from tests.view.page.drawn import axes_of, only_axes, place_of


def count_samples(axes: Any) -> int:
    """Heights of a row's histogram, added up."""
    (filled,) = [p for p in axes.patches if isinstance(p, StepPatch) and p.get_fill()]
    heights: Any = filled.get_data()[0]
    return int(heights.sum())


def test_every_sample_is_in_its_rows_histogram_outliers_too() -> None:
    samples = [*make_latency("step", samples=400).samples_ns, 900_000_000]
    chart = distribution_chart([Samples("step", samples), Samples("one", [5])])
    assert [count_samples(axes) for axes in axes_of(chart)] == [401, 1]


def test_the_median_its_interval_and_the_percentiles_stand_where_they_are() -> None:
    samples = make_latency("step", samples=1000).samples_ns
    summary = summarize(samples)
    axes = only_axes(distribution_chart([Samples("step", samples)]))
    places = [place_of(line)[0] for line in axes.lines]
    assert places == [summary.median, summary.percentiles[90.0], summary.percentiles[99.0]]
    (band,) = [p for p in axes.patches if hasattr(p, "get_width") and p.get_width()]
    ends = band.get_x(), band.get_x() + band.get_width()
    assert ends == pytest.approx((summary.ci_low, summary.ci_high))


def test_a_percentile_that_few_samples_carry_is_not_drawn() -> None:
    axes = only_axes(distribution_chart([Samples("step", range(1, 50))]))
    assert len(axes.lines) == 1


def test_rows_have_axes_of_their_own_unless_they_are_to_be_compared() -> None:
    rows = [Samples("fast", [10, 12, 14]), Samples("slow", [1000, 1200, 1400])]
    own = [axes.get_xlim() for axes in axes_of(distribution_chart(rows))]
    shared = [axes.get_xlim() for axes in axes_of(distribution_chart(rows, shared=True))]
    assert own[0][1] < own[1][0]
    assert shared[0] == shared[1]
    assert shared[0][0] < 10
    assert shared[0][1] > 1400


def test_a_row_says_its_median_in_words_and_the_chart_all_of_them() -> None:
    chart = distribution_chart(
        [Samples("prepare", [20_000] * 50), Samples("step", [3_000_000] * 9)]
    )
    texts = [text.get_text() for axes in axes_of(chart) for text in axes.texts]
    assert texts == ["prepare", "20.0 µs ± 0 %, 50 samples", "step", "3.00 ms ± 0 %, 9 samples"]
    assert chart.description == "Medians: prepare 20.0 µs, step 3.00 ms."


def test_a_lopsided_interval_is_no_plus_and_minus() -> None:
    chart = distribution_chart([Samples("step", [100, 100, 100, 100, 100, 150])])
    assert [text.get_text() for text in axes_of(chart)[0].texts] == [
        "step",
        "100 ns -0/+50 %, 6 samples",
    ]


def test_ticks_of_samples_that_are_close_together_can_be_told_apart() -> None:
    samples = [1_000_000 + 10 * n for n in range(100)]
    chart = distribution_chart([Samples("step", samples)])
    chart.figure.draw_without_rendering()
    labels = [label.get_text() for label in axes_of(chart)[0].get_xticklabels()]
    assert len(labels) == len(set(labels))


def test_the_pace_shows_every_extreme_and_names_both_ends() -> None:
    samples = [1_000_000] * 500 + [2_000_000] * 500
    samples[300] = 7_000_000
    chart = order_chart(Samples("step", samples))
    axes = only_axes(chart)
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().y1 == 7_000_000
    assert "a median of 1.00 ms, the last of 2.00 ms" in chart.description
    assert axes.get_xlim() == (0, 1000)
