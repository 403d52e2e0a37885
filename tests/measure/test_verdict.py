"""Verdicts on simulated machines whose truth is known."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from dsv4kv.bench.compare.ab import draw_order
from dsv4kv.measure.verdict import Judgement, Launches, Verdict, judge, judge_exact, judge_pairs

SAME, FASTER, SLOWER, UNCLEAR = Verdict
TRIALS = 500
LAUNCHES = 7

Machine = Callable[[Generator, int], NDArray[np.float64]]
Order = Callable[[int], NDArray[np.bool_]]  # of a trial; which launches are of the side after


def in_turns(trial: int) -> NDArray[np.bool_]:
    return np.array(draw_order(LAUNCHES, "launch", trial), np.bool_)


def in_a_row(_trial: int) -> NDArray[np.bool_]:
    return np.arange(2 * LAUNCHES) >= LAUNCHES


def steady(rng: Generator, launches: int) -> NDArray[np.float64]:
    """1 % between launches."""
    return np.exp(rng.normal(0, 0.01, launches))


def bimodal(rng: Generator, launches: int) -> NDArray[np.float64]:
    """Every launch is fast or 8 % slower, by chance."""
    slow = rng.random(launches) < 0.5
    return np.exp(rng.normal(0, 0.005, launches)) * np.where(slow, 1.08, 1)


def warming(rng: Generator, launches: int) -> NDArray[np.float64]:
    """Gets 10 % slower from the first launch to the last."""
    return steady(rng, launches) * np.linspace(1, 1.1, launches)


def stepping(rng: Generator, launches: int) -> NDArray[np.float64]:
    """Gets 10 % slower at once, at some launch."""
    return steady(rng, launches) * np.where(np.arange(launches) < rng.integers(launches), 1, 1.1)


def wandering(rng: Generator, launches: int) -> NDArray[np.float64]:
    """Each launch is 2 % off the one before."""
    return np.exp(np.cumsum(rng.normal(0, 0.02, launches)))


def share(machine: Machine, slowdown: float, order: Order) -> Counter[Verdict]:
    """Verdicts of all trials, in percent."""
    count: Counter[Verdict] = Counter()
    when = np.arange(2 * LAUNCHES, dtype=np.float64)
    for trial in range(TRIALS):
        is_after = order(trial)
        times = machine(np.random.default_rng([trial, 6]), len(is_after))
        times = times * np.where(is_after, 1 + slowdown, 1)
        before, after = (
            Launches(times[chosen].tolist(), when[chosen].tolist())
            for chosen in (~is_after, is_after)
        )
        count[judge(before, after).verdict] += 1
    return Counter({verdict: 100 * n / TRIALS for verdict, n in count.items()})


@pytest.mark.parametrize("machine", [bimodal, warming, stepping, wandering])
def test_on_a_machine_that_changes_a_slowdown_is_never_a_speedup_nor_the_same(
    machine: Machine,
) -> None:
    told = share(machine, 0.05, in_turns)
    assert told[SAME] + told[FASTER] <= 1


def test_runs_in_a_row_on_a_machine_that_warms_up_are_unclear() -> None:
    told = share(warming, 0, in_a_row)
    assert told[SLOWER] + told[FASTER] + told[SAME] <= 5


def test_of_runs_in_a_row_with_a_step_among_them_one_in_five_is_taken_for_slower() -> None:
    """What no statistic can tell apart, and why ``--ab`` takes turns."""
    told = share(stepping, 0, in_a_row)
    assert 15 <= told[SLOWER] <= 25
    assert told[FASTER] == 0


def test_without_knowing_when_launches_ran_a_drift_in_a_row_is_taken_for_a_slowdown() -> None:
    """What the order of launches is recorded for."""
    times = warming(np.random.default_rng(1), 2 * LAUNCHES).tolist()
    blind = judge(Launches(times[:LAUNCHES]), Launches(times[LAUNCHES:]))
    seeing = judge(Launches(times[:LAUNCHES], range(7)), Launches(times[LAUNCHES:], range(7, 14)))
    assert blind.verdict is SLOWER
    assert (seeing.verdict, seeing.reason) == (
        UNCLEAR,
        "the machine drifted: interleave the launches",
    )


# ---- launches in turns, step by step ------------------------------------------------------------


def test_one_pair_is_unclear_whatever_it_shows() -> None:
    found = judge_pairs([3.0])
    assert (found.verdict, found.interval) == (UNCLEAR, None)
    assert found.reason == "one pair of launches"


# ---- the rule itself ----------------------------------------------------------------------------


def judged(before: list[float], after: list[float], **options: float) -> Judgement:
    return judge(Launches(before), Launches(after), **options)  # type: ignore[arg-type]


TIGHT = [100.0, 100.1, 99.9, 100.05, 99.95, 100.0, 100.02]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, SAME), (1.005, SAME), (1.01, UNCLEAR), (1.02, SLOWER), (0.98, FASTER), (0.99, UNCLEAR)],
)
def test_a_change_within_the_floor_is_none_and_beyond_it_one(
    factor: float, verdict: Verdict
) -> None:
    assert judged(TIGHT, [factor * t for t in TIGHT]).verdict is verdict


def test_a_wide_interval_around_no_change_is_not_the_same() -> None:
    wide = [90.0, 95.0, 100.0, 101.0, 105.0, 110.0, 112.0]
    found = judged(wide, wide)
    assert (found.verdict, found.reason) == (UNCLEAR, "the launches differ too much")


def test_a_change_near_the_floor_is_told_as_that() -> None:
    found = judged(TIGHT, [1.01 * t for t in TIGHT])
    assert (found.verdict, found.reason) == (UNCLEAR, "a change as small as the floor")


def test_one_launch_a_side_is_unclear_whatever_it_shows() -> None:
    found = judged([100.0], [300.0])
    assert (found.verdict, found.reason) == (UNCLEAR, "one launch a side")
    assert found.ratio == pytest.approx(3)
    assert found.interval is None


def test_many_verdicts_at_once_take_more_launches_and_say_how_many() -> None:
    four = TIGHT[:4]
    slower = [2 * t for t in four]
    assert judged(four, slower).verdict is SLOWER
    found = judged(four, slower, verdicts=25)
    assert (found.verdict, found.interval) == (UNCLEAR, None)
    assert found.reason == "too few launches: 25 verdicts take 5 a side"
    assert judge_pairs([2.0] * 4, verdicts=25).reason == found.reason


@pytest.mark.parametrize("launches", [2, 3])
def test_fewer_than_four_launches_have_no_interval_however_alike_they_are(launches: int) -> None:
    """Of two pairs Student's t reaches to +5.9e32 %."""
    ratios = [2.0, 2.02, 2.01][:launches]
    for found in (judge_pairs(ratios), judged([1.0] * launches, ratios)):
        assert (found.verdict, found.interval) == (UNCLEAR, None)
        assert "too few launches" in found.reason
        assert found.ratio == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [(100.0, SAME), (100.9, SAME), (101.0, SAME), (101.1, SLOWER), (99.1, SAME), (98.9, FASTER)],
)
def test_what_every_run_gives_again_is_a_change_or_none(after: float, verdict: Verdict) -> None:
    found = judge_exact(100.0, after)
    assert (found.verdict, found.reason) == (verdict, "")
    assert found.interval == (found.ratio, found.ratio) == (after / 100, after / 100)
