"""Intervals of medians and of ratios over launches, by the exact bootstrap.

Drawing from n values with replacement, the median of the draw is one of the values, and how often
it is the i-th smallest is a binomial sum (Maritz and Jarrett, JASA 73, 1978): nothing is sampled,
so no seed, and the same launches always give the same interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.measure.student import t_quantile

_ANYTHING = 100.0  # the logarithm of a ratio that says nothing any more


@dataclass(frozen=True)
class Ratio:
    """How many times as long ``after`` takes as ``before``.

    Attributes:
        value: Ratio of the medians.
        low: Lower end of its interval.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def inside(self, bound: float) -> bool:
        """Whether the whole interval lies within 1 / bound and bound."""
        return 1 / bound < self.low and self.high < bound


def median_ratio(before: Sequence[float], after: Sequence[float], tail: float) -> Ratio:
    """Ratio of the medians of two independent sets of launches, each value above 0.

    Args:
        before: One value per launch, such as the median of its samples.
        after: Likewise.
        tail: Share of the bootstrap distribution left out at either end.
    """
    first, second = np.log(np.sort(before)), np.log(np.sort(after))
    weights = np.outer(_median_weights(len(second)), _median_weights(len(first))).ravel()
    low, high = _quantiles(np.subtract.outer(second, first).ravel(), weights, tail)
    value = float(np.median(after)) / float(np.median(before))
    # with an even number of launches the median lies between two, the ends are at launches
    return Ratio(value, min(value, math.exp(low)), max(value, math.exp(high)))


def paired_ratio(ratios: Sequence[float], tail: float) -> Ratio:
    """Median of the ratios of pairs of launches that saw the same machine, two at least.

    The interval is the bootstrap's or Student's, whichever is wider: few pairs carry many verdicts
    only together with how much they scatter.
    """
    logs = np.log(np.sort(ratios))
    low, high = _quantiles(logs, _median_weights(len(logs)), tail)
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    reach = min(t_quantile(tail, len(logs) - 1) * error, _ANYTHING)
    middle = float(np.mean(logs))
    value = float(np.median(ratios))
    low, high = math.exp(min(low, middle - reach)), math.exp(max(high, middle + reach))
    return Ratio(value, min(value, low), max(value, high))


def fewest_launches(tail: float) -> int:
    """Launches a side so that full separation by chance is as rare as ``tail``."""
    launches = 1
    while not can_tell(launches, launches, tail):
        launches += 1
    return launches


def can_tell(before: int, after: int, tail: float) -> bool:
    """Whether so many launches can carry a verdict at all.

    Of equals, all values of the one side lie above all of the other in one of
    ``comb(before + after, after)`` arrangements. If even that is not rare, nothing is.
    """
    return math.comb(before + after, after) * tail >= 1


def _median_weights(n: int) -> NDArray[np.float64]:
    """Chance of each of n ordered values to be the median of a draw with replacement.

    An odd number is drawn: n, or n - 1 where n is even, so that the median is one of the values;
    one fewer makes the interval a little wider, as small samples want it anyway.
    """
    drawn = n - (n % 2 == 0)
    most = range((drawn + 1) // 2, drawn + 1)
    below = np.arange(n + 1) / n
    reached = sum(math.comb(drawn, k) * below**k * (1 - below) ** (drawn - k) for k in most)
    return np.diff(np.asarray(reached, np.float64))


def _quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64], tail: float
) -> tuple[float, float]:
    """The values that leave at most ``tail`` of the weight below and above them."""
    order = np.argsort(values, kind="stable")
    ordered, weight = values[order], weights[order]
    low = int(np.searchsorted(np.cumsum(weight), tail, "right"))
    high = int(np.searchsorted(np.cumsum(weight[::-1]), tail, "right"))
    return float(ordered[low]), float(ordered[::-1][high])
