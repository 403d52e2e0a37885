"""Verdicts on changes, over launches: samples of one process agree better than two processes.

The ratio of two sides is Hodges and Lehmann's (Annals of Mathematical Statistics 34, 1963): the
middle of the ratios of every launch of one side to every launch of the other. Its interval ends at
the ratios that a rank test would just not reject: Mann-Whitney's of two sides, Wilcoxon's signed
ranks of pairs, counted exactly. Ranks of few launches cannot be as rare as many verdicts
need: then the interval is all that was seen or Student's t, whichever is wider, and below
``fewest_launches`` there is none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsv4kv.runs.statistics import t_quantile
from dsv4kv.units import counted

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
    cut, logs = _cut_of_sides(len(before), len(after), tail), (np.log(before), np.log(after))
    mean, reach = float(logs[1].mean() - logs[0].mean()), 0.0 if cut else _welch(*logs, tail)
    return _interval(compare_sides(before, after), cut, mean, reach)


def ratio_of_pairs(ratios: Sequence[float], tail: float) -> Ratio:
    """Ratio of pairs of launches that saw the same machine, at least two; ``tail`` as above."""
    logs, reach = np.log(ratios), 0.0
    if not (cut := _cut_of_pairs(len(ratios), tail)):
        error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
        reach = t_quantile(tail, len(logs) - 1) * error
    return _interval(compare_pairs(ratios), cut, float(logs.mean()), reach)


def _interval(compared: Logs, cut: int, mean: float, reach: float) -> Ratio:
    """Without a cut: all that was seen or Student's interval, whichever is wider."""
    low, high = min(compared[0], mean - reach), max(compared[-1], mean + reach)
    if cut:
        low, high = compared[cut - 1], compared[-cut]
    return Ratio(middle(compared), math.exp(low), math.exp(high))


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


CONFIDENCE = 0.95
DEFAULT_FLOOR = 0.01  # changes below 1 % are nobody's regression

_TAIL = (1 - CONFIDENCE) / 2
_SAME_WITHIN_FLOORS = 3
_DIFFER = "the launches differ too much"
# Standard errors from which a trend counts. Of sides that ran one after the other it may explain
# all of a change, so a hint is enough; of interleaved sides only what chance left of it.
_DRIFT_T_APART = 1.0
_DRIFT_T_IN_TURNS = 2.0


class Verdict(StrEnum):
    """What may be said about ``after`` next to ``before``."""

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Launches:
    """One quantity over the launches of one side."""

    values: Sequence[float]  # median of each launch, above 0; any unit of time
    order: Sequence[float]  # when each launch ran: any clock that both sides share


@dataclass(frozen=True)
class Judgement:
    """A verdict and what it rests on."""

    verdict: Verdict  # what may be said
    ratio: float  # how many times as long the side after takes, by Hodges and Lehmann's estimate
    interval: tuple[float, float] | None
    """Ends of the ratio's interval; None where the launches are too few to know."""
    reason: str = ""  # why it is UNCLEAR


def judge(
    before: Launches, after: Launches, floor: float = DEFAULT_FLOOR, verdicts: int = 1
) -> Judgement:
    """Compare two sides; a quantity that grows is SLOWER.

    SLOWER and FASTER need the whole interval of the ratio beyond the floor. SAME needs it within
    the floor, or around 1 and within three floors. The rest is UNCLEAR, and so is what a drift of
    the machine would explain. Each of ``verdicts`` made together gets its share of the 5 %
    (Bonferroni).
    """
    tail = _TAIL / verdicts
    if reason := _too_few((len(before.values), len(after.values)), verdicts, "one launch a side"):
        estimate = middle(compare_sides(before.values, after.values))
        return Judgement(Verdict.UNCLEAR, estimate, None, reason)
    ratio = ratio_of_sides(before.values, after.values, tail)
    found = _conclude(ratio, floor, min(len(before.values), len(after.values)))
    if found.verdict is not Verdict.UNCLEAR:
        flat = ratio_of_sides(*_without_drift(before, after), tail)
        if _read(flat, floor) is not found.verdict:
            why = "the machine drifted: interleave the launches"
            return replace(found, verdict=Verdict.UNCLEAR, reason=why)
    return found


def judge_pairs(
    ratios: Sequence[float], floor: float = DEFAULT_FLOOR, verdicts: int = 1
) -> Judgement:
    """``judge`` of interleaved launches, by the ratio of each pair: no drift is looked for."""
    if reason := _too_few((len(ratios),), verdicts, "one pair of launches"):
        return Judgement(Verdict.UNCLEAR, middle(compare_pairs(ratios)), None, reason)
    return _conclude(ratio_of_pairs(ratios, _TAIL / verdicts), floor, len(ratios))


def judge_exact(before: float, after: float, floor: float = DEFAULT_FLOOR) -> Judgement:
    """Compare two numbers that every run gives again: there is no doubt, and no interval."""
    value = after / before
    verdict = _read(Ratio(value, value, value), floor)
    # beyond the floor it is a change, and within it none: nothing is between
    same = Verdict.SAME if verdict is Verdict.UNCLEAR else verdict
    return Judgement(same, value, (value, value))


def _conclude(ratio: Ratio, floor: float, launches: int) -> Judgement:
    verdict, reason = _read(ratio, floor), ""
    if verdict is Verdict.UNCLEAR:
        wide = _SAME_WITHIN_FLOORS * floor
        why = "a change as small as the floor" if ratio.inside(1 + wide) else _DIFFER
        # Launches of a side whose interval would be beyond the floor, or within three: intervals
        # are taken to shrink with the root of the launches, around the same ratio.
        change, reach = abs(math.log(ratio.value)), math.log(ratio.high / ratio.low) / 2
        margin = max(math.log1p(wide) - change, change - math.log1p(floor))
        many = max(launches + 1, math.ceil(launches * (reach / margin) ** 2))
        reason = f"{why}: about {many:,} a side would decide"
    return Judgement(verdict, ratio.value, (ratio.low, ratio.high), reason)


def _read(ratio: Ratio, floor: float) -> Verdict:
    if ratio.low > 1 + floor:
        return Verdict.SLOWER
    if ratio.high < 1 / (1 + floor):
        return Verdict.FASTER
    around_one = ratio.low <= 1 <= ratio.high
    if ratio.inside(1 + (_SAME_WITHIN_FLOORS if around_one else 1) * floor):
        return Verdict.SAME
    return Verdict.UNCLEAR


def _too_few(launches: Sequence[int], verdicts: int, alone: str) -> str:
    """Why launches of either side are too few for the verdicts; empty where they are not."""
    fewest = fewest_launches(_TAIL / verdicts)
    if min(launches) >= fewest:
        return ""
    if max(launches) == 1:
        return alone
    return f"too few launches: {counted(verdicts, 'verdict')} need {fewest} a side"


def _without_drift(before: Launches, after: Launches) -> tuple[Sequence[float], Sequence[float]]:
    """Both sides less the trend they share over time, if there is one."""
    logs = np.log([*before.values, *after.values])
    rank = np.argsort(np.argsort([*before.order, *after.order])).astype(np.float64)
    is_after = np.repeat((0.0, 1.0), (len(before.values), len(after.values)))
    design = np.column_stack((1 - is_after, is_after, rank - rank.mean()))
    apart = max(before.order) < min(after.order) or max(after.order) < min(before.order)
    least = _DRIFT_T_APART if apart else _DRIFT_T_IN_TURNS
    trend, freedom = 0.0, len(logs) - design.shape[1]
    if freedom >= 1 and np.linalg.matrix_rank(design) == design.shape[1]:
        fitted, *_ = np.linalg.lstsq(design, logs, rcond=None)
        variance = float(np.sum((logs - design @ fitted) ** 2)) / freedom
        error = float(np.sqrt(variance * np.linalg.inv(design.T @ design)[2, 2]))
        trend = float(fitted[2]) if abs(fitted[2]) > least * error else 0.0
    flat = np.exp(logs - trend * design[:, 2])
    return flat[is_after == 0].tolist(), flat[is_after == 1].tolist()
