"""Ratio of the times of two sides, and its confidence interval by rank tests.

The ratio is Hodges and Lehmann's (Annals of Mathematical Statistics 34, 1963): the middle of the
ratios of every launch of one side to every launch of the other. The interval ends at the ratios
that a rank test would just not reject: Mann-Whitney's of two sides, Wilcoxon's signed ranks of
pairs, counted exactly.

Ranks of few launches cannot be as rare as many verdicts at once need. Then the interval is all
that was seen or Student's t, whichever is wider; and below ``fewest_launches`` there is none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsv4kv.measure.statistics import t_quantile

_FEWEST_LAUNCHES = 4

Logs = NDArray[np.float64]


@dataclass(frozen=True)
class Ratio:
    """How many times as long ``after`` takes as ``before``."""

    value: float  # hodges and Lehmann's estimate
    low: float  # lower end of its interval
    high: float  # upper end

    def inside(self, bound: float) -> bool:
        """Whether the whole interval is within 1 / bound and bound."""
        return 1 / bound < self.low and self.high < bound


def fewest_launches(tail: float) -> int:
    """Launches of each side for so rare a tail: equals look apart in one of ``4 ** launches``."""
    return max(_FEWEST_LAUNCHES, math.ceil(math.log(1 / tail, 4)))


def compare_sides(before: ArrayLike, after: ArrayLike) -> Logs:
    """Sorted logarithms of the ratios of all launches after to all before, last axes."""
    apart = np.log(after)[..., :, None] - np.log(before)[..., None, :]
    return np.sort(apart.reshape(*apart.shape[:-2], -1))


def compare_pairs(ratios: ArrayLike) -> Logs:
    """Logarithms of the geometric means of every two pairs, each with itself too, in order."""
    logs = np.log(ratios)
    one, other = np.triu_indices(logs.shape[-1])
    return np.sort((logs[..., one] + logs[..., other]) / 2)


def middle(compared: Logs) -> float:
    """The estimate of what ``compare_sides`` or ``compare_pairs`` gave."""
    return math.exp(np.median(compared))


def ratio_of_sides(before: Sequence[float], after: Sequence[float], tail: float) -> Ratio:
    """Ratio of two sets of launches, at least two each, above 0; ``tail``: beyond either end."""
    compared = compare_sides(before, after)
    if cut := _cut_of_sides(len(before), len(after), tail):
        return _between(compared, compared[cut - 1], compared[-cut])
    first, second = np.log(before), np.log(after)
    return _as_wide_as(compared, float(second.mean() - first.mean()), _welch(first, second, tail))


def ratio_of_pairs(ratios: Sequence[float], tail: float) -> Ratio:
    """Ratio of pairs of launches that saw the same machine, at least two; ``tail`` likewise."""
    compared = compare_pairs(ratios)
    if cut := _cut_of_pairs(len(ratios), tail):
        return _between(compared, compared[cut - 1], compared[-cut])
    logs = np.log(ratios)
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return _as_wide_as(compared, float(logs.mean()), t_quantile(tail, len(logs) - 1) * error)


def _between(compared: Logs, low: float, high: float) -> Ratio:
    return Ratio(middle(compared), math.exp(low), math.exp(high))


def _as_wide_as(compared: Logs, mean: float, reach: float) -> Ratio:
    low, high = min(compared[0], mean - reach), max(compared[-1], mean + reach)
    return _between(compared, low, high)


def _welch(first: Logs, second: Logs, tail: float) -> float:
    """Reach of Student's interval for sides that need not scatter alike (Welch, 1947)."""
    shares = [float(np.var(side, ddof=1)) / len(side) for side in (first, second)]
    if not any(shares):
        return 0.0
    freedom = sum(shares) ** 2 / sum(
        share**2 / (len(side) - 1) for share, side in zip(shares, (first, second), strict=True)
    )
    whole = math.floor(freedom + 1e-9)  # fewer degrees are wider
    return t_quantile(tail, whole) * math.sqrt(sum(shares))


@lru_cache
def _cut_of_sides(before: int, after: int, tail: float) -> int:
    """How many of the smallest Mann-Whitney statistics together are as rare as the tail."""
    # coefficients of Gauss's binomial: the product of (1 - x^(before + k)) / (1 - x^k) up to after
    ways = np.zeros(before * after + 1, object)
    ways[0] = 1
    for k in range(1, after + 1):
        ways[before + k :] -= ways[: -(before + k)].copy()
        for start in range(k):
            ways[start::k] = np.cumsum(ways[start::k])
    return int(np.searchsorted(np.cumsum(ways), tail * int(ways.sum()), "right"))


@lru_cache
def _cut_of_pairs(pairs: int, tail: float) -> int:
    """How many of the smallest signed-rank sums together are as rare as the tail."""
    ways = np.zeros(pairs * (pairs + 1) // 2 + 1, object)
    ways[0] = 1
    for rank in range(1, pairs + 1):
        ways[rank:] += ways[:-rank].copy()
    return int(np.searchsorted(np.cumsum(ways), tail * int(ways.sum()), "right"))
