"""Verdicts on changes, over launches: samples of one process agree better than two processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dsv4kv.measure.ranks import (
    Ratio,
    compare_pairs,
    compare_sides,
    fewest_launches,
    middle,
    ratio_of_pairs,
    ratio_of_sides,
)

CONFIDENCE = 0.95
DEFAULT_FLOOR = 0.01  # changes below 1 % are nobody's regression

_TAIL = (1 - CONFIDENCE) / 2
_SAME_WITHIN_FLOORS = 3
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
    order: Sequence[float] | None = None
    """When each launch ran: any clock that both sides share. None if that is not known."""


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
    the machine would explain. Each of ``verdicts`` made at once gets its share of the 5 %
    (Bonferroni).
    """
    tail = _TAIL / verdicts
    if reason := _too_few((len(before.values), len(after.values)), verdicts, "one launch a side"):
        estimate = middle(compare_sides(before.values, after.values))
        return Judgement(Verdict.UNCLEAR, estimate, None, reason)
    ratio = ratio_of_sides(before.values, after.values, tail)
    verdict = _read(ratio, floor)
    if verdict is Verdict.UNCLEAR:
        reason = _why_unclear(ratio, floor)
    elif _read(ratio_of_sides(*_without_drift(before, after), tail), floor) is not verdict:
        verdict, reason = Verdict.UNCLEAR, "the machine drifted: interleave the launches"
    return Judgement(verdict, ratio.value, (ratio.low, ratio.high), reason)


def judge_pairs(
    ratios: Sequence[float], floor: float = DEFAULT_FLOOR, verdicts: int = 1
) -> Judgement:
    """``judge`` of interleaved launches, by the ratio of each pair: no drift is looked for."""
    if reason := _too_few((len(ratios),), verdicts, "one pair of launches"):
        return Judgement(Verdict.UNCLEAR, middle(compare_pairs(ratios)), None, reason)
    ratio = ratio_of_pairs(ratios, _TAIL / verdicts)
    verdict = _read(ratio, floor)
    reason = _why_unclear(ratio, floor) if verdict is Verdict.UNCLEAR else ""
    return Judgement(verdict, ratio.value, (ratio.low, ratio.high), reason)


def judge_exact(before: float, after: float, floor: float = DEFAULT_FLOOR) -> Judgement:
    """Compare two numbers that every run gives again: there is no doubt, and no interval."""
    value = after / before
    ratio = Ratio(value, value, value)
    verdict = _read(ratio, floor)
    # beyond the floor it is a change, and within it none: nothing is between
    return Judgement(
        Verdict.SAME if verdict is Verdict.UNCLEAR else verdict, value, (value, value)
    )


def _why_unclear(ratio: Ratio, floor: float) -> str:
    small = ratio.inside(1 + _SAME_WITHIN_FLOORS * floor)
    return "a change as small as the floor" if small else "the launches differ too much"


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
    """Why launches of either side do not carry so many verdicts; empty where they do."""
    fewest = fewest_launches(_TAIL / verdicts)
    if min(launches) >= fewest:
        return ""
    if max(launches) == 1:
        return alone
    return f"too few launches: {verdicts} verdicts take {fewest} a side"


def _without_drift(before: Launches, after: Launches) -> tuple[Sequence[float], Sequence[float]]:
    """Both sides less the trend they share over time, if there is one."""
    if before.order is None or after.order is None:
        return before.values, after.values
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
