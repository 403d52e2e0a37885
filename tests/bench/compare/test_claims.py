"""Verdicts on machines whose truth is known: equals are seldom called a change, changes often."""

from collections.abc import Callable
from math import log, sqrt

import numpy as np
import pytest
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from dsv4kv.bench.compare.ab import Unit, draw_order
from dsv4kv.bench.compare.verdict import Judgement, Launches, Verdict, judge, judge_pairs

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
    "normal, 10 %": lambda rng, after: rng.normal(0, 0.1, len(after)),
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


def judged(
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
        found.append(judged(turns, order, noise, slowdown, verdicts))
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


def test_an_order_that_is_drawn_breaks_a_rhythm_that_a_fixed_one_takes_for_a_change() -> None:
    """A wave with the period of A B B A, and equals on it."""
    rng, told = default_rng(4), {"fixed": 0, "drawn": 0}
    for trial in range(200):
        orders = {"fixed": [0, 1, 1, 0] * 4, "drawn": draw_order(8, "launch", trial)}
        noise = wave(rng, np.zeros(16))
        for name, order in orders.items():
            verdict = judged("launch", order, noise).verdict
            told[name] += verdict in (Verdict.SLOWER, Verdict.FASTER)
    assert told["fixed"] > 60
    assert told["drawn"] <= 12
