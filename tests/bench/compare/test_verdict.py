"""Verdicts on machines whose truth is known, and ratios by ranks against every order there is."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations, product
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from dsv4kv.bench.compare import verdict as vd
from dsv4kv.bench.compare.ab import Unit, draw_order
from dsv4kv.bench.compare.verdict import (
    Judgement,
    Launches,
    Ratio,
    Verdict,
    fewest_launches,
    judge,
    judge_pairs,
    ratio_of_pairs,
    ratio_of_sides,
)

SAME, FASTER, SLOWER, UNCLEAR = vd.Verdict


# ---- the rule itself ----------------------------------------------------------------------------


def judged(before: list[float], after: list[float], **options: float) -> vd.Judgement:
    """In turns, one before and one after."""
    first, second = (vd.Launches(each, range(at, 99, 2)[: len(each)])
                     for at, each in enumerate((before, after)))  # fmt: skip
    return vd.judge(first, second, **options)  # type: ignore[arg-type]


TIGHT = [100.0, 100.1, 99.9, 100.05, 99.95, 100.0, 100.02]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, SAME), (1.005, SAME), (1.01, UNCLEAR), (1.02, SLOWER), (0.98, FASTER), (0.99, UNCLEAR)],
)
def test_a_change_within_the_floor_is_none_and_beyond_it_one(
    factor: float, verdict: vd.Verdict
) -> None:
    assert judged(TIGHT, [factor * t for t in TIGHT]).verdict is verdict


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


times = st.lists(st.floats(1.0, 1e9), min_size=4, max_size=9)
ratios = st.lists(st.floats(0.1, 10), min_size=4, max_size=9)
tails = st.floats(1 / 256, 0.2)


def interval(ratio: Ratio) -> tuple[float, float]:
    return ratio.low, ratio.high


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 6), (7, 7)])
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


@given(times, times, ratios, tails)
def test_the_interval_holds_the_ratio_and_turns_over_with_the_sides(
    before: list[float], after: list[float], found: list[float], tail: float
) -> None:
    sides = ratio_of_sides(before, after, tail), ratio_of_sides(after, before, tail)
    pairs = ratio_of_pairs(found, tail), ratio_of_pairs([1 / each for each in found], tail)
    for there, back in (sides, pairs):
        assert there.low <= there.value <= there.high
        assert [1 / back.high, 1 / back.low] == pytest.approx(interval(there), rel=1e-6)


@pytest.mark.parametrize(
    ("verdicts", "fewest"),
    [(1, 4), (6, 4), (7, 5), (25, 5), (26, 6), (102, 6), (409, 7), (410, 8)],
)
def test_so_many_verdicts_take_so_many_launches(verdicts: int, fewest: int) -> None:
    """As docs/compare.md says."""
    assert fewest_launches(0.025 / verdicts) == fewest


TRIALS = 300  # verdicts of each machine
ERROR = 3.5 * sqrt(0.05 * 0.95 / TRIALS)  # 1 of 2,000 shares is further off by chance

Logs = NDArray[np.float64]
Machine = Callable[[Generator, Logs], Logs]
"""Noise of launches, whose second argument is 1 where one is of the side after."""


def two_modes(rng: Generator, after: Logs) -> Logs:
    return rng.normal(0, 0.005, len(after)) + log(1.08) * rng.integers(0, 2, len(after))


def drift(rng: Generator, after: Logs) -> Logs:
    return rng.normal(0, 0.01, len(after)) + np.log(np.linspace(1, 1.1, len(after)))


def wave(rng: Generator, after: Logs) -> Logs:
    phase = 2 * np.pi * (np.arange(len(after)) / 4 + rng.random())
    return rng.normal(0, 0.01, len(after)) + 0.05 * np.sin(phase)


MACHINES: dict[str, Machine] = {
    "normal, 1 %": lambda rng, after: rng.normal(0, 0.01, len(after)),
    "heavy tails, 1 %": lambda rng, after: 0.01 * rng.standard_t(2, len(after)),
    "two modes 8 % apart": two_modes,
    "1 % before, 3 % after": lambda rng, after: rng.normal(0, 0.01, len(after)) * (1 + 2 * after),
    "10 % slower from first to last": drift,
    "a wave every four launches": wave,
}
IN_TIME = ("10 % slower from first to last", "a wave every four launches")  # pairs share it
SCENES = [
    pytest.param(turns, name, verdicts, id=f"{turns}, {name}, {verdicts}")
    for turns in ("launch", "step")
    for name in MACHINES
    for verdicts in (1, 5)
    if turns == "launch" or name not in IN_TIME
]


def judged_in_order(
    turns: Unit, order: list[int], noise: Logs, slowdown: float = 0.0, verdicts: int = 1
) -> Judgement:
    """The verdict on launches that ran in this order, 1 for the side after."""
    after = np.asarray(order) == 1
    times, when = np.exp(noise) * (1 + slowdown * after), np.arange(len(order))
    if turns == "step":
        return judge_pairs((times[after] / times[~after]).tolist(), verdicts=verdicts)
    first, second = (Launches(times[at].tolist(), when[at].tolist()) for at in (~after, after))
    return judge(first, second, verdicts=verdicts)


def drawn(
    turns: Unit,
    machine: Machine,
    launches: int,
    trials: int,
    slowdown: float = 0.0,
    verdicts: int = 1,
) -> list[Judgement]:
    rng = default_rng([launches, verdicts])
    found = []
    for _ in range(trials):
        order = draw_order(launches, turns, int(rng.integers(1 << 32)))
        noise = machine(rng, np.asarray(order, np.float64))
        found.append(judged_in_order(turns, order, noise, slowdown, verdicts))
    return found


@pytest.mark.parametrize("launches", [5, 7])
@pytest.mark.parametrize(("turns", "name", "verdicts"), SCENES)
def test_equals_are_seldom_called_a_change_and_intervals_hold(
    turns: Unit, name: str, verdicts: int, launches: int
) -> None:
    """Each of several verdicts has its part of the 5 %; uneven sides hold a little less often."""
    found = drawn(turns, MACHINES[name], launches, TRIALS, verdicts=verdicts)
    called = sum(each.verdict in (Verdict.SLOWER, Verdict.FASTER) for each in found)
    held = sum(
        each.interval is not None and each.interval[0] <= 1 <= each.interval[1] for each in found
    )
    assert called / TRIALS <= 0.05 / verdicts + ERROR / sqrt(verdicts)
    assert held / TRIALS >= 1 - 0.05 / verdicts - ERROR / sqrt(verdicts) - 0.02 * name.startswith(
        "1 %"
    )


@pytest.mark.parametrize("turns", ["launch", "step"])
def test_what_is_five_percent_slower_is_found_where_launches_differ_by_one(turns: Unit) -> None:
    found = drawn(turns, MACHINES["normal, 1 %"], 7, 100, slowdown=0.05)
    assert sum(each.verdict is Verdict.SLOWER for each in found) >= 98
