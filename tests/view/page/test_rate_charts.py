import numpy as np
import pytest

from dsv4kv.measure.statistics import Estimate
from dsv4kv.runs.schema import Operation
from dsv4kv.view.charts.rates import (
    OpRate,
    Roof,
    operation_rates,
    rates_chart,
    roofline_chart,
)
from tests.runs.records import make_case, make_operations
from tests.runs.test_gpu_record import make_gpu_case
from tests.view.page.drawn import only_axes, place_of

ROOFS = [Roof("read", 4400.0), Roof("copy", 4200.0)]


def rates() -> list[OpRate]:
    return operation_rates(make_gpu_case())


def test_operations_are_numbered_from_the_fastest_and_cold_and_hot_share_a_number() -> None:
    found = rates()
    assert [(each.number, each.temperature) for each in found] == [(1, "hot"), (1, "cold")]
    assert [each.rate.value for each in found] == [5000, 4000]
    many = operation_rates(make_case(operations=make_operations()))
    assert [each.number for each in many] == list(range(1, 8))
    values = [each.rate.value for each in many]
    assert values == sorted(values, reverse=True)


def test_an_operation_that_moved_nothing_has_no_place_on_a_logarithmic_axis() -> None:
    empty = Operation(name="flush", layer_type="csa", samples_ns=[5], entries=[0], bytes=[0])
    assert operation_rates(make_case(operations=[empty])) == []


def test_rates_and_their_intervals_are_drawn_in_the_row_of_their_number() -> None:
    found = operation_rates(make_case(operations=make_operations()))
    axes = only_axes(rates_chart(found, []))
    marks = [container.lines[0] for container in axes.containers]
    drawn = [place_of(m) for m in marks]
    assert drawn == [(each.rate.value, each.number) for each in found]
    for each, container in zip(found, axes.containers, strict=True):
        (segment,) = container.lines[2][0].get_segments()
        half = each.rate.half_width or 0.0  # four calls have no interval
        ends = [each.rate.value - half, each.rate.value + half]
        assert list(segment[:, 0]) == pytest.approx(ends)


def test_roofs_are_lines_at_their_rates_named_from_the_lowest() -> None:
    axes = only_axes(rates_chart(rates(), ROOFS))
    lines = [line for line in axes.lines if len(set(line.get_xdata())) == 1]
    upright = [place_of(line)[0] for line in lines if len(line.get_xdata()) == 2]
    assert upright == [4400, 4200]
    assert axes.texts[0].get_text() == "copy 4,200, read 4,400 GB/s"


def test_the_roofline_has_a_mark_at_size_and_rate_of_each_operation() -> None:
    found = rates()
    axes = only_axes(roofline_chart(found, ROOFS))
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    drawn = [place_of(m) for m in marks]
    assert drawn == [(each.call_bytes, each.rate.value) for each in found]


def test_diagonals_of_the_roofline_are_equal_times() -> None:
    axes = only_axes(roofline_chart(rates(), ROOFS))
    diagonals = [line for line in axes.lines if line.get_marker() == "None"]
    sloped = [line for line in diagonals if line.get_ydata()[0] != line.get_ydata()[-1]]
    assert sloped
    for line in sloped:
        times = np.asarray(line.get_xdata()) / np.asarray(line.get_ydata())
        assert times[0] == pytest.approx(times[1])


def test_marks_that_touch_share_a_label_and_no_number_is_missing() -> None:
    twin = make_operations()[4]
    apart = make_operations()[2]
    found = operation_rates(
        make_case(operations=[twin, twin.model_copy(update={"layer_type": "hca"}), apart])
    )
    axes = only_axes(roofline_chart(found, []))
    numbers = [text.get_text() for text in axes.texts if text.get_text()[0].isdigit()]
    assert "1, 2" in numbers
    assert "3" in numbers


def test_a_label_steps_aside_for_a_mark_that_stands_where_it_would() -> None:
    rate = Estimate(1.0, None)
    sizes = {10: 1e6, 2: 1.6e6, 3: 1e9}
    found = [OpRate(n, f"op {n}", None, rate, size) for n, size in sizes.items()]
    axes = only_axes(roofline_chart(found, []))
    places = {text.get_text(): text.get_position()[0] for text in axes.texts}
    assert places["10"] < sizes[10]
    assert places["2"] > sizes[2]
    assert places["3"] > sizes[3]


def test_a_mark_tells_its_numbers_when_it_is_pointed_at() -> None:
    chart = rates_chart(rates(), [])
    (tip,) = chart.tips["tip1"]
    assert tip == (
        "gather_topk csa cold: 4,000 ± 0.00 GB/s, 95.4 MiB in 25.0 µs"
    )  # fmt: skip
