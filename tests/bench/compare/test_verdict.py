"""Verdicts on simulated machines whose truth is known."""

import re

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from dsv4kv.bench.compare import verdict as vd

SAME, FASTER, SLOWER, UNCLEAR = vd.Verdict
LAUNCHES = 7


def steady(rng: Generator, launches: int) -> NDArray[np.float64]:
    """1 % between launches."""
    return np.exp(rng.normal(0, 0.01, launches))


def warming(rng: Generator, launches: int) -> NDArray[np.float64]:
    """Gets 10 % slower from the first launch to the last."""
    return steady(rng, launches) * np.linspace(1, 1.1, launches)


def test_without_knowing_when_launches_ran_a_drift_in_a_row_is_taken_for_a_slowdown() -> None:
    """What the order of launches is recorded for."""
    times = warming(np.random.default_rng(1), 2 * LAUNCHES).tolist()
    blind = vd.judge(vd.Launches(times[:LAUNCHES]), vd.Launches(times[LAUNCHES:]))
    seeing = vd.judge(
        vd.Launches(times[:LAUNCHES], range(7)), vd.Launches(times[LAUNCHES:], range(7, 14))
    )
    assert blind.verdict is SLOWER
    assert (seeing.verdict, seeing.reason) == (
        UNCLEAR,
        "the machine drifted: interleave the launches",
    )


# ---- the rule itself ----------------------------------------------------------------------------


def judged(before: list[float], after: list[float], **options: float) -> vd.Judgement:
    return vd.judge(vd.Launches(before), vd.Launches(after), **options)  # type: ignore[arg-type]


TIGHT = [100.0, 100.1, 99.9, 100.05, 99.95, 100.0, 100.02]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, SAME), (1.005, SAME), (1.01, UNCLEAR), (1.02, SLOWER), (0.98, FASTER), (0.99, UNCLEAR)],
)
def test_a_change_within_the_floor_is_none_and_beyond_it_one(
    factor: float, verdict: vd.Verdict
) -> None:
    assert judged(TIGHT, [factor * t for t in TIGHT]).verdict is verdict


def test_a_wide_interval_around_no_change_is_not_the_same() -> None:
    wide = [90.0, 95.0, 100.0, 101.0, 105.0, 110.0, 112.0]
    found = judged(wide, wide)
    assert found.verdict is UNCLEAR
    assert found.reason == "the launches differ too much: about 86 a side would decide"


@pytest.mark.parametrize("change", [1.0, 1.005, 0.995])
@pytest.mark.parametrize("scatter", [0.03, 0.05])
def test_the_launches_that_are_said_to_decide_mostly_do(change: float, scatter: float) -> None:
    rng = np.random.default_rng(7)

    def run(launches: int) -> vd.Judgement:
        return vd.judge_pairs(np.exp(rng.normal(np.log(change), scatter, launches)).tolist())

    unclear = [found for _ in range(40) if (found := run(7)).verdict is UNCLEAR]
    needed = [int(re.findall(r"about ([\d,]+)", f.reason)[0].replace(",", "")) for f in unclear]
    assert len(unclear) > 10
    assert min(needed) > 7
    decided = [run(round(np.median(needed))).verdict for _ in range(20)]
    assert decided.count(UNCLEAR) <= 10


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
    assert found.reason == "too few launches: 25 verdicts need 5 a side"
    assert vd.judge_pairs([2.0] * 4, verdicts=25).reason == found.reason


@pytest.mark.parametrize("launches", [2, 3])
def test_fewer_than_four_launches_have_no_interval_however_alike_they_are(launches: int) -> None:
    """Of two pairs Student's t reaches to +5.9e32 %."""
    ratios = [2.0, 2.02, 2.01][:launches]
    for found in (vd.judge_pairs(ratios), judged([1.0] * launches, ratios)):
        assert (found.verdict, found.interval) == (UNCLEAR, None)
        assert "too few launches" in found.reason
        assert found.ratio == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [(100.0, SAME), (100.9, SAME), (101.0, SAME), (101.1, SLOWER), (99.1, SAME), (98.9, FASTER)],
)
def test_what_every_run_gives_again_is_a_change_or_none(after: float, verdict: vd.Verdict) -> None:
    found = vd.judge_exact(100.0, after)
    assert (found.verdict, found.reason) == (verdict, "")
    assert found.interval == (found.ratio, found.ratio) == (after / 100, after / 100)
