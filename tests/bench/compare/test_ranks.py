"""Ratios by ranks: against every order and sign there is, and where Student's t takes over."""

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.compare.verdict import Ratio, fewest_launches, ratio_of_pairs, ratio_of_sides

times = st.lists(st.floats(1.0, 1e9), min_size=4, max_size=9)
ratios = st.lists(st.floats(0.1, 10), min_size=4, max_size=9)
tails = st.floats(1 / 256, 0.2)


def interval(ratio: Ratio) -> tuple[float, float]:
    return ratio.low, ratio.high


@pytest.mark.parametrize(("before", "after"), [(4, 4), (5, 4), (4, 6), (7, 7)])
@pytest.mark.parametrize("tail", [0.025, 0.05, 0.2])
def test_the_interval_of_sides_ends_where_all_orders_of_equals_are_as_rare_as_the_tail(
    before: int, after: int, tail: float
) -> None:
    """Counted by going through every order, of which each is as likely."""
    orders = Counter(
        sum(place - rank for rank, place in enumerate(places))
        for places in combinations(range(before + after), after)
    )
    allowed, cut = tail * orders.total(), 0
    while sum(orders[below] for below in range(cut + 1)) <= allowed:
        cut += 1
    rng = np.random.default_rng(before)
    first, second = np.exp(rng.normal(0, 0.1, before)), np.exp(rng.normal(0, 0.1, after))
    seen = sorted(b / a for a in first for b in second)
    found = ratio_of_sides(first.tolist(), second.tolist(), tail)
    assert interval(found) == pytest.approx((seen[cut - 1], seen[-cut]))


@pytest.mark.parametrize("pairs", [6, 7, 9])
@pytest.mark.parametrize("tail", [0.025, 0.1])
def test_the_interval_of_pairs_ends_where_all_signs_of_equals_are_as_rare_as_the_tail(
    pairs: int, tail: float
) -> None:
    signs = Counter(
        sum(rank for rank, up in enumerate(ups, start=1) if up)
        for ups in product((0, 1), repeat=pairs)
    )
    allowed, cut = tail * signs.total(), 0
    while sum(signs[below] for below in range(cut + 1)) <= allowed:
        cut += 1
    logs = np.random.default_rng(pairs).normal(0, 0.1, pairs)
    seen = sorted((logs[i] + logs[j]) / 2 for i in range(pairs) for j in range(i, pairs))
    found = ratio_of_pairs(np.exp(logs).tolist(), tail)
    assert np.log(interval(found)) == pytest.approx((seen[cut - 1], seen[-cut]))


def test_of_four_pairs_the_interval_is_students_where_ranks_are_not_rare_enough() -> None:
    """Logs 0, 0.1, 0.1 and 0.2: mean 0.1, error 0.0816 / 2, t of three degrees 3.182."""
    found = ratio_of_pairs([math.exp(each) for each in (0.2, 0.0, 0.1, 0.1)], 0.025)
    reach = 3.182446 * math.sqrt(0.02 / 3) / 2
    assert np.log(interval(found)) == pytest.approx((0.1 - reach, 0.1 + reach), abs=1e-6)


def test_of_four_launches_the_interval_is_welchs_where_ranks_are_not_rare_enough() -> None:
    """Sides that scatter alike have six degrees of freedom together, t of 0.5 % 3.707."""
    logs = np.array([0.0, 0.1, 0.1, 0.2])
    found = ratio_of_sides(np.exp(logs).tolist(), np.exp(logs + 1).tolist(), 0.005)
    reach = 3.707428 * math.sqrt(2 * (0.02 / 3) / 4)
    assert np.log(interval(found)) == pytest.approx((1 - reach, 1 + reach), abs=1e-6)


def test_where_ranks_are_not_rare_enough_all_that_was_seen_is_in_the_interval() -> None:
    """Two heaps: Student's interval of pairs would end between them."""
    found = ratio_of_pairs([1.0, 1.6, 1.6, 1.6, 1.6], 0.2 / 7)
    assert found.low <= 1.0
    assert found.high >= 1.6


@given(times, times, tails)
def test_the_interval_holds_the_ratio_and_turns_over_with_the_sides(
    before: list[float], after: list[float], tail: float
) -> None:
    there, back = ratio_of_sides(before, after, tail), ratio_of_sides(after, before, tail)
    assert there.low <= there.value <= there.high
    assert [1 / back.high, 1 / back.low] == pytest.approx(interval(there), rel=1e-6)


@given(ratios, tails)
def test_the_interval_of_pairs_holds_the_ratio_and_turns_over_with_the_sides(
    found: list[float], tail: float
) -> None:
    there = ratio_of_pairs(found, tail)
    back = ratio_of_pairs([1 / each for each in found], tail)
    assert there.low <= there.value <= there.high
    assert [1 / back.high, 1 / back.low] == pytest.approx(interval(there), rel=1e-6)


@pytest.mark.parametrize(
    ("verdicts", "fewest"),
    [(1, 4), (6, 4), (7, 5), (25, 5), (26, 6), (102, 6), (409, 7), (410, 8)],
)
def test_so_many_verdicts_take_so_many_launches(verdicts: int, fewest: int) -> None:
    """As docs/compare.md says."""
    assert fewest_launches(0.025 / verdicts) == fewest
