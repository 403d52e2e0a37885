"""What samples say: medians, rates, and how well this run knows them.

The intervals treat the samples of one run as independent. They say how well *this launch* is
known; another launch may differ by more, so two runs are compared over launches, not over these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
PERCENTILES = (50.0, 90.0, 99.0, 99.9)

_TAIL = (1 - CONFIDENCE) / 2
_NORMAL_QUANTILE = 1.959964  # of 1 - _TAIL
_LOPSIDED = 2.0
_FEWEST_SAMPLES = 6  # for an interval: the range of five covers the median in 93.75 % only


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float  # the number
    half_width: float | None  # half of the interval, or its longer arm; None where it is unknown
    arms: tuple[float, float] | None = None  # its reach below and above; None if the same

    @property
    def is_lopsided(self) -> bool:
        """Whether one arm is over twice the other, so that no ± describes the interval."""
        return self.arms is not None and max(self.arms) > _LOPSIDED * min(self.arms)


@dataclass(frozen=True)
class Summary:
    """What the samples of one quantity say, in the unit of the samples."""

    n: int  # number of samples
    median: float  # middle of the samples
    ci_low: float | None  # lower end of the median's 95 % interval; None below six samples
    ci_high: float | None  # upper end of that interval
    iqr: float  # distance between the quartiles
    minimum: float  # smallest sample
    maximum: float  # largest sample
    percentiles: dict[float, float]  # 50, 90, 99 and 99.9 with at least ten samples beyond

    @property
    def estimate(self) -> Estimate:
        """The median with its interval, which need not be symmetric."""
        if self.ci_low is None or self.ci_high is None:
            return Estimate(self.median, None)
        arms = self.median - self.ci_low, self.ci_high - self.median
        return Estimate(self.median, max(arms), arms)


def summarize(samples_ns: Sequence[float]) -> Summary:
    """Summarize one sample or more; quantiles interpolate linearly."""
    ordered = np.sort(np.asarray(samples_ns, dtype=np.float64))
    low, median, high = (float(q) for q in np.percentile(ordered, (25, 50, 75)))
    interval = _median_interval(ordered)
    return Summary(
        n=len(ordered),
        median=median,
        ci_low=interval and interval[0],
        ci_high=interval and interval[1],
        iqr=high - low,
        minimum=float(ordered[0]),
        maximum=float(ordered[-1]),
        # with ten samples beyond; in integers, as 100 - 99.9 is inexact
        percentiles={
            p: float(np.percentile(ordered, p))
            for p in PERCENTILES
            if len(ordered) * (1000 - round(10 * p)) >= 10 * 1000
        },
    )


def estimate_rate(amounts: Sequence[float], durations: Sequence[float]) -> Estimate | None:
    """Rate of calls of unequal size: all work over all time (bytes over ns is GB/s).

    A median of per-call rates would let many small calls outvote the few that move the bytes.
    The uncertainty, of a ratio estimator: with residuals r = amount - rate * duration, the
    standard error is sqrt(n / (n - 1) * sum(r^2)) / total time (W. G. Cochran, Sampling
    Techniques, 6.4), times Student's t for a 95 % interval; unknown below six calls. None if no
    time passed.
    """
    work, time = np.asarray(amounts, np.float64), np.asarray(durations, np.float64)
    total, n = float(time.sum()), len(time)
    if not total:
        return None
    rate = float(work.sum()) / total
    if n < _FEWEST_SAMPLES:
        return Estimate(rate, None)
    variance = n / (n - 1) * float(np.sum((work - rate * time) ** 2))
    return Estimate(rate, _student_quantile(n - 1) * math.sqrt(variance) / total)


def divide(estimate: Estimate, by: Estimate) -> Estimate:
    """Quotient of two independent estimates; its error is unknown if the divisor may be 0."""
    value = estimate.value / by.value
    if estimate.half_width is None or by.half_width is None:
        return Estimate(value, None)
    (down, up), (by_down, by_up) = _factors(estimate), _factors(by)
    if math.isinf(up) or math.isinf(by_down):
        return Estimate(value, None)
    # errors of the logarithms add as squares
    below = -value * math.expm1(-math.hypot(down, by_up))
    above = value * math.expm1(math.hypot(up, by_down))
    return Estimate(value, max(below, above), (below, above))


def _factors(estimate: Estimate) -> tuple[float, float]:
    """Logarithms of value over lower end and upper end over value; infinite where one is 0."""
    assert estimate.half_width is not None
    below, above = estimate.arms or (estimate.half_width, estimate.half_width)
    value = estimate.value
    pairs = (value, value - below), (value + above, value)
    first, second = (
        0.0 if high == low else math.log(high / low) if low > 0 else math.inf
        for high, low in pairs
    )
    return first, second


def _median_interval(ordered: NDArray[np.float64]) -> tuple[float, float] | None:
    """Ends of the median's interval, two order statistics; None below six samples.

    Fewer than k samples are below the median with binomial(n, 1/2), whatever the distribution.
    """
    n = len(ordered)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n + 1)))))
    below = np.arange(n // 2 + 1)
    log_ways = log_factorial[n] - log_factorial[below] - log_factorial[n - below]
    k = int(np.searchsorted(np.cumsum(np.exp(log_ways - n * math.log(2))), _TAIL, "right"))
    return (float(ordered[k - 1]), float(ordered[n - k])) if k else None


def _student_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t by Cornish-Fisher: within 1 % from five degrees on."""
    z = _NORMAL_QUANTILE
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def t_quantile(tail: float, freedom: int) -> float:
    """Student's t that is exceeded on one side with probability ``tail``, above 0 and below 0.5.

    By bisection of the closed form for whole degrees of freedom (Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        inside = _share_inside(angle, freedom)
        low, high = (angle, high) if (1 - inside) / 2 > tail else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _share_inside(angle: float, freedom: int) -> float:
    """Probability of |t| below sqrt(freedom) · tan(angle)."""
    cosine, odd = math.cos(angle), freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total
