"""Quantities have the digits that their uncertainty allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.runs.quantities import within
from dsv4kv.runs.statistics import Estimate, summarize
from dsv4kv.view import table as qt

SIZES = st.floats(min_value=1e-6, max_value=1e9)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (1_234_567, "1,234,567"),
        (29.46, "29.5"),
        (0.0123, "0.0123"),
        (0.0, "0.00"),
        (Estimate(12.4071, 0.0531), "12.41 ± 0.06"),
        (Estimate(1165.7, 498.2), "1,166 ± 499"),
        (Estimate(53_005.2, 0.2), "53,005 ± 1"),
        (Estimate(3.0, 1e-9), "3.0000 ± 0.0001"),
        (Estimate(7.0, 20.0), "<27"),
        (Estimate(3.14159, None), "3.14 ± ?"),
        (Estimate(12.41, 0.05, (0.01, 0.05)), "12.41 -0.01/+0.05"),
        (Estimate(12.41, 0.05, (0.03, 0.05)), "12.41 ± 0.05"),
        (summarize([9.0, 10.0, 10.0, 10.0, 10.0, 10.0, 32.0]).estimate, "10 -1/+22"),
        (within(10.0, 2.5), "10 -6/+15"),
    ],
)
def test_digits_of_a_quantity(value: Estimate | float | None, text: str) -> None:
    assert qt.format_quantity(value) == text


def test_scales_and_units() -> None:
    assert qt.format_quantity(Estimate(12_407.1, 53.1), 1e-3) == "12.41 ± 0.06"
    assert (qt.percent(0.1234).value, qt.size(3 << 29).value) == ("12.3", "1.50 GiB")
    assert qt.clocked(3.1267, 1.4) == "3.1"
    assert qt.clocked(12_345.6, None) == qt.number(12_345.6) == "12,346"
    assert (qt.factor(1.4), qt.factor(None)) == ("÷1.4 … ×1.4", "–")


@given(SIZES, st.floats(min_value=1e-3, max_value=1e9))
def test_the_printed_interval_contains_the_measured_one(value: float, half_width: float) -> None:
    printed = qt.format_quantity(Estimate(value, half_width))
    if printed.startswith("<"):  # it reaches 0
        assert float(printed[1:].replace(",", "")) >= (value + half_width) * (1 - 1e-9)
        assert half_width >= value * 0.5
        return
    shown, width = printed.split(" ± ")
    decimals = len(shown.partition(".")[2])
    assert len(width.partition(".")[2]) == decimals
    rounding = 0.5001 * 10.0**-decimals
    assert abs(float(shown.replace(",", "")) - value) <= rounding
    assert float(width.replace(",", "")) >= max(half_width * (1 - 1e-9) - 1e-9, 0)
