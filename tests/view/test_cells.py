"""Numbers with the digits their uncertainty allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.measure.statistics import Estimate, summarize
from dsv4kv.runs.quantities import within
from dsv4kv.view.cells import (
    format_clocked,
    format_estimate,
    format_factor,
    format_number,
    measured,
    measured_arms,
)
from dsv4kv.view.table import Table, names, numbers, text_of
from tests.view.terminal import shown

SIZES = st.floats(min_value=1e-6, max_value=1e9)


@pytest.mark.parametrize(
    ("value", "half_width", "told"),
    [
        (12.4071, 0.0531, "12.41 ± 0.06"),
        (12.4071, 0.0131, "12.407 ± 0.014"),
        (1165.7, 498.2, "1,166 ± 499"),
        (0.02991, 0.00047, "0.0299 ± 0.0005"),
        (53_005.2, 0.2, "53,005 ± 1"),
        (3.0, 0.0, "3.00 ± 0.00"),
        (3.0, 1e-9, "3.0000 ± 0.0001"),
        (0.0, 0.0, "0.00 ± 0.00"),
        (7.0, 20.0, "7 ± 20"),
        (3.14159, None, "3.14 ± ?"),
    ],
)
def test_an_estimate_has_the_digits_of_its_uncertainty(
    value: float, half_width: float | None, told: str
) -> None:
    assert format_estimate(Estimate(value, half_width)) == told


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([9.0, 10.0, 10.0, 10.0, 10.0, 10.0, 32.0], "10 -1/+22"),
        ([12.3, 12.4, 12.41, 12.41, 12.42, 12.52], "12.41 -0.11/+0.11"),
        ([12.4] * 6, "12.4 -0.0/+0.0"),
        ([12.4] * 5, "12.4 ?"),
    ],
)
def test_a_lopsided_interval_is_told_by_both_its_arms(samples: list[float], told: str) -> None:
    assert text_of(measured_arms(summarize(samples))) == told


@pytest.mark.parametrize(
    ("arms", "told"),
    [((0.01, 0.05), "12.41 -0.01/+0.05"), ((0.03, 0.05), "12.41 ± 0.05"), (None, "12.41 ± 0.05")],
)
def test_no_lopsided_interval_is_told_as_plus_and_minus(
    arms: tuple[float, float] | None, told: str
) -> None:
    assert format_estimate(Estimate(12.41, 0.05, arms)) == told


def test_nothing_measured_is_a_dash() -> None:
    assert format_estimate(None) == "–"


def test_the_scale_changes_value_and_uncertainty() -> None:
    assert format_estimate(Estimate(12_407.1, 53.1), 1e-3) == "12.41 ± 0.06"


@given(SIZES, SIZES)
def test_the_told_interval_contains_the_measured_one(value: float, half_width: float) -> None:
    told_value, told_width = format_estimate(Estimate(value, half_width)).split(" ± ")
    decimals = len(told_value.partition(".")[2])
    assert len(told_width.partition(".")[2]) == decimals
    rounding = 0.5001 * 10.0**-decimals
    assert abs(float(told_value.replace(",", "")) - value) <= rounding
    assert float(told_width.replace(",", "")) >= half_width * (1 - 1e-9) - 1e-9
    assert float(told_width.replace(",", "")) > 0


@given(st.lists(st.none() | st.builds(Estimate, SIZES, st.none() | SIZES), max_size=8))
def test_the_cells_of_a_column_line_up_at_their_uncertainty(
    estimates: list[Estimate | None],
) -> None:
    rows = [("x", measured(estimate)) for estimate in estimates]
    lines = shown(Table("", [*names("row"), *numbers("median µs")], rows)).splitlines()[2:]
    assert [line[1:].strip() for line in lines] == [format_estimate(e) for e in estimates]
    assert len({line.index("±") for line in lines if "±" in line}) <= 1


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0.00"), (4.24, "4.24"), (29.46, "29.5"), (8950.4, "8,950"), (0.0123, "0.0123")],
)
def test_a_bare_number_has_three_digits_or_more(value: float, told: str) -> None:
    assert format_number(value) == told


@pytest.mark.parametrize(
    ("value", "told"), [(3.1267, "3.1"), (0.04321, "0.043"), (172.4, "172"), (12_345.6, "12,346")]
)
def test_a_time_that_is_right_within_a_factor_has_two_digits(value: float, told: str) -> None:
    assert format_clocked(value, 1.4) == told
    assert format_clocked(value, None) == format_number(value)


def test_a_clock_s_error_is_a_factor_and_its_interval_reaches_further_up() -> None:
    assert (format_factor(1.4), format_factor(None)) == ("× ÷ 1.4", "–")
    assert format_estimate(within(10.0, 2.5)) == "10 -6/+15"
