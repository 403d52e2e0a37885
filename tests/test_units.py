"""Quantities are read exactly and written readably."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.units import format_bytes, format_count, format_duration, parse_bytes, parse_count

BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
LARGE = st.integers(0, 10**30)
PARSERS = pytest.mark.parametrize("parse", [parse_count, parse_bytes])


@given(st.integers(0, 2**30) | st.integers(0, 2**20).map(lambda thousands: thousands * 2**10))
@example(131_072)
@example(2**20)
@example(1000)
def test_a_count_is_written_as_it_is_read(count: int) -> None:
    assert parse_count(format_count(count)) == count


@given(LARGE, st.sampled_from("KMGTkmgt"))
def test_sizes_in_ib_are_binary_and_in_b_decimal(count: int, prefix: str) -> None:
    assert parse_bytes(f"{count} {prefix}iB") == count * BINARY[prefix.upper()]
    assert parse_bytes(f"{count}{prefix}B") == count * DECIMAL[prefix.upper()]
    assert parse_bytes(f"{count}B") == count


@PARSERS
@pytest.mark.parametrize("text", ["", "K", "-1", "1e6", "1.", ".5", "1 2", "ten", "1Q", "1\u212a"])
def test_what_is_no_quantity_is_refused_with_an_example(
    parse: Callable[[str], int], text: str
) -> None:
    with pytest.raises(ConfigError, match="write"):
        parse(text)


@PARSERS
@given(text=st.text(alphabet="0123456789._,-+ KMGTiBkb\u212a\u0130", max_size=40))
@example("9" * 400)
def test_any_text_is_a_number_or_a_refusal(parse: Callable[[str], int], text: str) -> None:
    try:
        assert parse(text) >= 0
    except ConfigError as refusal:
        assert repr(text) in str(refusal)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (37_440, "36.6 KiB"),
        (3_688_172_544, "3.43 GiB"),
        (2**51, "2,048 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_a_size_is_written_in_binary_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(462e6, "460 ms"), (996e3, "1.0 ms"), (37.3e6, "37 ms"), (7.71e9, "7.7 s"), (0, "0 ns")],
)
def test_an_uncertain_duration_has_two_digits(nanoseconds: float, text: str) -> None:
    assert format_duration(nanoseconds, 2) == text


@given(st.floats(0.001, 999e9))
@example(999.7)
@example(999_999.0)
def test_a_duration_has_one_to_three_digits_before_the_point(nanoseconds: float) -> None:
    number, unit = format_duration(nanoseconds).split()
    assert 1 <= len(number.partition(".")[0]) <= 3
    size = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(number) * size == pytest.approx(nanoseconds, rel=5.1e-3, abs=5.1e-3)


@given(st.floats(0, 2**50))
def test_a_written_size_is_within_half_a_percent(count: float) -> None:
    number, unit = format_bytes(count).split()
    size = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert float(number.replace(",", "")) * size == pytest.approx(count, rel=5.1e-3, abs=0.51)


def test_a_size_beyond_every_float_is_written() -> None:
    assert format_bytes(10**400).endswith(" TiB")
    assert len(format_bytes(10**400).replace(",", "")) == 400 - 12 + len(" TiB")
