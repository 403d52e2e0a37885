"""The exact bootstrap of medians: against drawing, and where it must be exact."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.measure.bootstrap import (
    Ratio,
    can_tell,
    fewest_launches,
    median_ratio,
    paired_ratio,
)

times = st.lists(st.floats(1.0, 1e9), min_size=1, max_size=9)
tails = st.floats(1e-6, 0.4)


@pytest.mark.parametrize("tail", [0.025, 0.1])
def test_the_interval_is_that_of_every_possible_draw(tail: float) -> None:
    before, after = [10.0, 12.0, 17.0], [11.0, 18.0, 19.0]
    medians = [
        [float(np.median(draw)) for draw in product(side, repeat=3)] for side in (before, after)
    ]
    ratios = np.sort([b / a for a in medians[0] for b in medians[1]])
    left_out = int(tail * len(ratios))
    ratio = median_ratio(before, after, tail)
    assert ratio.low == pytest.approx(ratios[left_out])
    assert ratio.high == pytest.approx(ratios[-1 - left_out])
    assert ratio.value == pytest.approx(18 / 12)


def test_of_an_even_number_of_launches_one_fewer_is_drawn() -> None:
    before, after = [10.0, 11.0, 12.0, 17.0], [11.0]
    medians = np.sort([float(np.median(draw)) for draw in product(before, repeat=3)])
    left_out = int(0.13 * len(medians))
    ratio = median_ratio(before, after, 0.13)
    assert ratio.high == pytest.approx(11 / medians[left_out])
    assert ratio.low == pytest.approx(11 / medians[-1 - left_out])


def test_drawing_a_hundred_thousand_times_gives_the_same_interval() -> None:
    rng = np.random.default_rng(5)
    before, after = rng.normal(100, 5, 7), rng.normal(104, 5, 9)
    drawn = [np.median(rng.choice(side, (100_000, len(side))), axis=1) for side in (before, after)]
    expected = np.quantile(drawn[1] / drawn[0], [0.05, 0.95])
    ratio = median_ratio(before.tolist(), after.tolist(), 0.05)
    assert [ratio.low, ratio.high] == pytest.approx(expected.tolist(), rel=0.003)


@given(times, times, tails)
def test_the_interval_holds_the_ratio_and_ends_at_launches(
    before: list[float], after: list[float], tail: float
) -> None:
    ratio = median_ratio(before, after, tail)
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(np.median(after) / np.median(before))
    possible = [b / a for a in before for b in after] + [ratio.value]
    for end in (ratio.low, ratio.high):
        assert any(math.isclose(end, each, rel_tol=1e-9) for each in possible)


@given(times, times, tails)
def test_swapping_the_sides_turns_the_interval_over(
    before: list[float], after: list[float], tail: float
) -> None:
    ratio, other = median_ratio(before, after, tail), median_ratio(after, before, tail)
    assert 1 / other.low == pytest.approx(ratio.high)
    assert 1 / other.high == pytest.approx(ratio.low)


@given(times, times, tails, st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(
    before: list[float], after: list[float], tail: float, unit: float
) -> None:
    ratio = median_ratio(before, after, tail)
    scaled = median_ratio([unit * t for t in before], [unit * t for t in after], tail)
    assert [scaled.low, scaled.high] == pytest.approx([ratio.low, ratio.high])


@given(times, times, tails, tails)
def test_a_smaller_tail_never_narrows_the_interval(
    before: list[float], after: list[float], first: float, second: float
) -> None:
    narrow = median_ratio(before, after, max(first, second))
    wide = median_ratio(before, after, min(first, second))
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


def test_equal_launches_leave_no_doubt() -> None:
    assert median_ratio([7.0] * 5, [7.0] * 6, 0.025) == Ratio(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [(1, 1, False), (3, 3, False), (4, 4, True), (1, 30, False), (1, 39, True), (3, 7, True)],
)
def test_launches_can_tell_if_full_separation_is_rare(before: int, after: int, told: bool) -> None:
    assert can_tell(before, after, 0.025) is told


@given(st.floats(1e-9, 0.5))
def test_the_fewest_launches_can_tell_and_one_fewer_cannot(tail: float) -> None:
    fewest = fewest_launches(tail)
    assert can_tell(fewest, fewest, tail)
    assert fewest == 1 or not can_tell(fewest - 1, fewest - 1, tail)


# ---- pairs --------------------------------------------------------------------------------------


def test_the_interval_of_pairs_is_students_where_that_is_wider() -> None:
    """Three logs 0, 0.1 and 0.2: mean 0.1, standard error 0.1 / √3, t of 2 degrees 4.303."""
    ratio = paired_ratio([math.exp(each) for each in (0.2, 0.0, 0.1)], 0.025)
    reach = 4.30265 * 0.1 / math.sqrt(3)
    ends = [math.exp(0.1 - reach), math.exp(0.1), math.exp(0.1 + reach)]
    assert [ratio.low, ratio.value, ratio.high] == pytest.approx(ends, rel=1e-5)


def test_the_interval_of_pairs_is_the_bootstraps_where_that_is_wider() -> None:
    """Two heaps: the middle of a draw is in either, Student's would end between them."""
    ratio = paired_ratio([1.0] * 5 + [1.6] * 4, 0.2)
    assert (ratio.low, ratio.value) == (1.0, 1.0)
    assert ratio.high == pytest.approx(1.6)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=9), tails)
def test_the_interval_of_pairs_turns_over_with_the_sides(ratios: list[float], tail: float) -> None:
    there = paired_ratio(ratios, tail)
    back = paired_ratio([1 / each for each in ratios], tail)
    assert there.low <= there.value <= there.high
    assert [1 / back.high, 1 / back.low] == pytest.approx([there.low, there.high], rel=1e-6)
