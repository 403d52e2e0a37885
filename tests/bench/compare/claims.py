"""What docs/claims.md says of verdicts, simulated on machines whose truth is known.

``make claims`` simulates every figure anew and writes the tables into the page, which takes some
minutes; ``test_claims.py`` holds what stands there against a few trials of its own.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from dsv4kv.bench.compare.ab import Unit, draw_order
from dsv4kv.bench.compare.verdict import Judgement, Launches, Verdict, judge, judge_pairs

PAGE = Path(__file__).resolve().parents[3] / "docs" / "claims.md"
LAUNCHES = (4, 5, 7, 15)
TRIALS = 4000
FAMILY_TRIALS = 1000  # of many verdicts each
BEGIN, END = "<!-- make claims -->", "<!-- claims end -->"

Logs = NDArray[np.float64]
Machine = Callable[[Generator, Logs], Logs]  # noise of launches; 1 where one is of the side after


@dataclass(frozen=True)
class Scene:
    """What is simulated."""

    turns: Unit  # how launches take turns
    machine: str  # name of what disturbs them
    slowdown: float = 0.0  # of the side after, as a fraction
    verdicts: int = 1  # made at once, each on a row with noise of its own

    @property
    def trials(self) -> int:
        return TRIALS if self.verdicts == 1 else FAMILY_TRIALS


@dataclass(frozen=True)
class Told:
    """Per cent of comparisons that call any row a change, and in which all intervals hold."""

    called: float
    held: float


def normal(sigma: float) -> Machine:
    def noise(rng: Generator, after: Logs) -> Logs:
        return rng.normal(0, sigma, len(after))

    return noise


def heavy_tails(rng: Generator, after: Logs) -> Logs:
    return 0.01 * rng.standard_t(2, len(after))


def two_modes(rng: Generator, after: Logs) -> Logs:
    return rng.normal(0, 0.005, len(after)) + log(1.08) * rng.integers(0, 2, len(after))


def drift(rng: Generator, after: Logs) -> Logs:
    return rng.normal(0, 0.01, len(after)) + np.log(np.linspace(1, 1.1, len(after)))


def wave(rng: Generator, after: Logs) -> Logs:
    phase = 2 * np.pi * (np.arange(len(after)) / 4 + rng.random())
    return rng.normal(0, 0.01, len(after)) + 0.05 * np.sin(phase)


def uneven(rng: Generator, after: Logs) -> Logs:
    return rng.normal(0, 0.01, len(after)) * (1 + 2 * after)


MACHINES: dict[str, Machine] = {
    "normal, 1 %": normal(0.01),
    "normal, 3 %": normal(0.03),
    "normal, 10 %": normal(0.1),
    "heavy tails: t of 2 degrees, 1 %": heavy_tails,
    "two modes 8 % apart": two_modes,
    "10 % slower from first to last": drift,
    "a wave of ±5 % every four launches": wave,
    "1 % before, 3 % after": uneven,
}
_IN_TIME = ("10 % slower from first to last", "a wave of ±5 % every four launches")
_FAMILIES = ("normal, 10 %", "heavy tails: t of 2 degrees, 1 %", "two modes 8 % apart")
_SLOWED = ("normal, 1 %", "normal, 3 %", *_FAMILIES[1:])

EQUALS = [
    Scene(turns, machine, verdicts=verdicts)
    for turns in ("launch", "step")
    for verdicts in (1, 5, 25)
    for machine in (MACHINES if verdicts == 1 else _FAMILIES)
    if turns == "launch" or machine not in _IN_TIME  # which both launches of a pair share
]
SLOWER = [
    Scene(turns, machine, slowdown)
    for turns in ("launch", "step")
    for machine in _SLOWED
    for slowdown in (0.02, 0.03, 0.05)
]


def simulate(scene: Scene, launches: int, trials: int, seed: int) -> Told | None:
    """Comparisons with so many launches a side; None where they are too few for an interval."""
    rng = default_rng([seed, crc32(repr(scene).encode()), launches])
    called = held = 0
    for _ in range(trials):
        found = [_judge(scene, launches, rng) for _ in range(scene.verdicts)]
        if found[0].interval is None:
            return None
        called += any(each.verdict in (Verdict.SLOWER, Verdict.FASTER) for each in found)
        held += all(_holds(each, 1 + scene.slowdown) for each in found)
    return Told(100 * called / trials, 100 * held / trials)


def judge_launches(
    order: Sequence[int], noise: Logs, slowdown: float = 0.0, verdicts: int = 1
) -> Judgement:
    """The verdict on launches that ran in this order, 1 for the side after."""
    after = np.asarray(order)
    times, when = np.exp(noise) * (1 + slowdown * after), np.arange(len(after))
    first, second = (
        Launches(times[after == side].tolist(), when[after == side].tolist()) for side in (0, 1)
    )
    return judge(first, second, verdicts=verdicts)


def _judge(scene: Scene, launches: int, rng: Generator) -> Judgement:
    order = draw_order(launches, scene.turns, int(rng.integers(1 << 32)))
    noise = MACHINES[scene.machine](rng, np.asarray(order, np.float64))
    if scene.turns == "launch":
        return judge_launches(order, noise, scene.slowdown, scene.verdicts)
    after = np.asarray(order) == 1
    ratios = np.exp(noise[after] - noise[~after]) * (1 + scene.slowdown)
    return judge_pairs(ratios.tolist(), verdicts=scene.verdicts)


def _holds(judgement: Judgement, truth: float) -> bool:
    assert judgement.interval
    low, high = judgement.interval
    return low <= truth <= high


# ---- the tables of the page ---------------------------------------------------------------------


def equals_row(scene: Scene, told: Sequence[Told | None]) -> str:
    cells = [_called(each) for each in told] + [_held(each) for each in told]
    return _row(f"`{scene.turns}`", scene.machine, str(scene.verdicts), *cells)


def slower_row(scene: Scene, told: Sequence[Told | None]) -> str:
    slower = f"{scene.slowdown * 100:.0f} %"
    return _row(f"`{scene.turns}`", scene.machine, slower, *map(_called, told))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _called(told: Told | None) -> str:
    return f"{told.called:.1f}" if told else "–"


def _held(told: Told | None) -> str:
    return f"{told.held:.1f}" if told else "–"


def tables() -> Iterator[str]:
    counts = [str(launches) for launches in LAUNCHES]
    many, few = (f"{_error(trials):.1f}" for trials in (TRIALS, FAMILY_TRIALS))
    called = [f"called: {each} launches" for each in counts]
    yield f"Simulated, {TRIALS:,} comparisons for every figure and {FAMILY_TRIALS:,} where several"
    yield f"verdicts are made together: near 5 % a standard error is {many} points, and {few}."
    yield ""
    yield "Of equals, per cent that are called a change, and per cent whose intervals all hold:"
    yield ""
    yield _row("turns", "noise of a launch", "verdicts", *called, *(f"hold: {n}" for n in counts))
    yield _row("---", "---", *["---:"] * 9)
    yield from _simulated(EQUALS, equals_row)
    yield ""
    yield "Of a side that is slower, per cent that are called SLOWER, one verdict each:"
    yield ""
    yield _row("turns", "noise of a launch", "slower by", *called)
    yield _row("---", "---", *["---:"] * 5)
    yield from _simulated(SLOWER, slower_row)


def _error(trials: int) -> float:
    """Standard error of a share of 5 %, in points."""
    return 100 * sqrt(0.05 * 0.95 / trials)


def _simulated(
    scenes: Sequence[Scene], tell: Callable[[Scene, Sequence[Told | None]], str]
) -> Iterator[str]:
    for scene in scenes:
        row = tell(scene, [simulate(scene, n, scene.trials, seed=0) for n in LAUNCHES])
        print(row, file=sys.stderr, flush=True)
        yield row


if __name__ == "__main__":
    written = "\n".join([BEGIN, *tables(), END])
    page = PAGE.read_text("utf-8")
    replaced = re.sub(f"{BEGIN}.*{END}", lambda _: written, page, flags=re.DOTALL)
    PAGE.write_text(replaced, "utf-8")
