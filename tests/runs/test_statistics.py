"""Summaries of samples, against obvious definitions and by simulation."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.runs.statistics import Estimate, divide, estimate_rate, summarize, t_quantile

durations = st.lists(st.integers(min_value=1, max_value=10**12), min_size=1, max_size=60)
calls = st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)), min_size=1, max_size=60)


@given(durations)
def test_the_summary_equals_the_definitions_of_the_standard_library(samples: list[int]) -> None:
    summary = summarize(samples)
    assert summary.n == len(samples)
    assert summary.median == statistics.median(samples)
    assert summary.minimum == min(samples)
    assert summary.maximum == max(samples)
    if len(samples) > 1:
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        assert summary.iqr == pytest.approx(high - low)


@given(durations)
def test_the_interval_of_six_samples_holds_the_median(samples: list[int]) -> None:
    summary = summarize(samples)
    if len(samples) < 6:
        assert summary.ci_low is None
        assert summary.ci_high is None
    else:
        assert summary.ci_low is not None
        assert summary.ci_high is not None
        assert summary.minimum <= summary.ci_low <= summary.median <= summary.ci_high
        assert summary.ci_high <= summary.maximum


@pytest.mark.parametrize("n", [6, 7, 8, 9, 20, 51, 100, 1000, 1001])
def test_the_interval_is_the_narrowest_pair_of_order_statistics_with_95_percent(n: int) -> None:
    summary = summarize(range(1, n + 1))  # sample k is its own rank
    assert summary.ci_low is not None
    k = int(summary.ci_low)
    assert summary.ci_high == n + 1 - k

    def missed(rank: int) -> float:
        return sum(math.comb(n, below) for below in range(rank)) / (1 << (n - 1))

    assert missed(k) <= 0.05 < missed(k + 1)


@given(st.sampled_from([(19, 50), (99, 90), (999, 99), (9999, 99.9)]))
def test_a_percentile_is_told_only_with_ten_samples_beyond_it(case: tuple[int, float]) -> None:
    too_few, percentile = case
    assert percentile not in summarize(range(too_few)).percentiles
    enough = range(too_few + 1)
    assert summarize(enough).percentiles[percentile] == pytest.approx(too_few * percentile / 100)


@given(calls)
def test_a_rate_is_all_work_over_all_time(pairs: list[tuple[int, int]]) -> None:
    amounts, times = zip(*pairs, strict=True)
    rate = estimate_rate(amounts, times)
    assert rate is not None
    assert rate.value == pytest.approx(sum(amounts) / sum(times))
    assert (rate.half_width is None) == (len(pairs) < 6)


@pytest.mark.parametrize(("n", "least"), [(10, 0.86), (50, 0.91), (500, 0.935)])
def test_the_interval_covers_the_true_rate_in_95_percent(n: int, least: float) -> None:
    random = np.random.default_rng(3)
    amounts = random.lognormal(sigma=1.0, size=(2000, n))
    times = amounts * random.lognormal(mean=-0.02, sigma=0.2, size=(2000, n))  # mean 1
    rates = [estimate_rate(a, t) for a, t in zip(amounts.tolist(), times.tolist(), strict=True)]
    covered = sum(abs(r.value - 1.0) <= (r.half_width or 0) for r in rates if r is not None)
    # Few and very unequal calls: a handful of large ones decide, so the interval is short.
    assert least < covered / 2000 < 0.97


def test_a_quotient_is_low_where_its_dividend_is_low_and_its_divisor_high() -> None:
    quotient = divide(Estimate(10.0, 20.0, (5.0, 20.0)), by=Estimate(20.0, 10.0, (10.0, 0.0)))
    assert quotient.arms == pytest.approx(
        (0.25, 0.5 * math.exp(math.hypot(*np.log([3, 2]))) - 0.5)
    )
    assert quotient.arms is not None
    assert quotient.half_width == quotient.arms[1]


def test_a_quotient_is_never_below_zero_and_unknown_where_its_divisor_may_be_zero() -> None:
    maybe, sure = Estimate(1.0, 2.0), Estimate(1.0, 0.0)
    assert divide(maybe, sure).arms == pytest.approx((1.0, 2.0))
    assert divide(sure, maybe) == Estimate(1.0, None)
    assert divide(Estimate(0.0, 0.0), sure) == Estimate(0.0, 0.0, (0.0, 0.0))


# Abramowitz and Stegun, Handbook of Mathematical Functions, table 26.10
PRINTED = {
    (1, 0.025): 12.706, (2, 0.025): 4.303, (6, 0.025): 2.447, (13, 0.025): 2.160,
    (1, 0.005): 63.657, (4, 0.005): 4.604, (5, 0.0005): 6.869, (6, 0.0005): 5.959,
}  # fmt: skip


@pytest.mark.parametrize(("freedom", "tail"), PRINTED)
def test_quantiles_are_those_of_the_printed_tables(freedom: int, tail: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(PRINTED[freedom, tail], abs=6e-4)


@pytest.mark.parametrize("calls", [6, 7, 10, 30, 200])
def test_the_interval_of_a_rate_is_students_t_to_one_percent(calls: int) -> None:
    amounts = np.arange(1.0, calls + 1)
    times = amounts + np.where(np.arange(calls) % 2, 0.1, -0.1)
    found = estimate_rate(amounts.tolist(), times.tolist())
    assert found
    assert found.half_width
    residuals = amounts - found.value * times
    error = math.sqrt(calls / (calls - 1) * float(np.sum(residuals**2))) / float(times.sum())
    assert found.half_width / error == pytest.approx(t_quantile(0.025, calls - 1), rel=0.01)
