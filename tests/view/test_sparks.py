from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.view.sparks import spark_bar, spark_line, spark_shape

SAMPLES = st.lists(st.integers(1, 10**9), min_size=1, max_size=200)


@given(SAMPLES, st.integers(1, 40))
def test_a_shape_is_as_wide_as_asked_and_has_a_full_column(samples: list[int], width: int) -> None:
    shape = spark_shape(samples, width)
    assert len(shape) == width
    assert "█" in shape


def test_a_shape_shows_where_samples_are_and_even_a_single_one() -> None:
    assert spark_shape([10] * 1000 + [20], 4) == "█  ▁"
    assert spark_shape([10] * 8 + [20] * 4, 4) == "█  ▄"
    assert spark_shape([], 3) == "   "


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 40))
def test_a_larger_share_is_never_a_shorter_bar(one: float, other: float, width: int) -> None:
    low, high = sorted((one, other))
    order = " ▏▎▍▌▋▊▉█"
    lengths = [sum(map(order.index, spark_bar(share, width))) for share in (low, high)]
    assert lengths[0] <= lengths[1]
    assert len(spark_bar(low, width)) == width


def test_bars_are_exact_to_an_eighth_and_end_at_the_edge() -> None:
    assert spark_bar(0.5, 4) == "██  "
    assert spark_bar(1 / 32, 4) == "▏   "
    assert spark_bar(0, 4) == "    "
    assert spark_bar(1.5, 4) == spark_bar(1, 4) == "████"


@given(st.lists(st.integers(0, 10**6), max_size=200), st.integers(1, 40))
def test_a_line_is_as_wide_as_its_values_allow_and_full_where_the_highest_is(
    values: list[int], width: int
) -> None:
    line = spark_line(values, width)
    assert len(line) == min(width, len(values))
    assert ("█" in line) == any(values)
    assert set(line) <= set(" ▁▂▃▄▅▆▇█")


def test_a_line_shows_the_highest_of_each_stretch_and_even_the_least_of_values() -> None:
    assert spark_line([0, 1, 4, 8], 4) == " ▁▄█"
    assert spark_line([8, 0, 0, 0, 1000, 0], 3) == "▁ █"
    assert spark_line([0, 0], 2) == "  "
