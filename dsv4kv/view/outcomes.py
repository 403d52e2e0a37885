"""What came out of a case, or of several launches of it, as the numbers that settings change."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dsv4kv.measure.statistics import Estimate, summarize
from dsv4kv.runs.quantities import (
    allocated_bytes,
    axis_names,
    gather_rate,
    latency_median,
    saved_percent,
)
from dsv4kv.runs.schema import Case
from dsv4kv.view.case import graph_device_time
from dsv4kv.view.cells import show_setting
from dsv4kv.view.facts import tokens_per_second

Reader = Callable[[Case], Estimate | None]
"""Reads a number of a case; None where it has none."""
Group = Sequence[Case]
"""Launches of one configuration."""


@dataclass(frozen=True)
class Outcome:
    """A number of a case.

    Attributes:
        key: Of its chart.
        title: What it is, with its unit if that is not part of a value.
        read: Reads it.
        unit: ``ns``, ``B``, ``%`` (of prompt tokens) or what follows the number.
        best: What the best of a sweep is called; empty where neither more nor less is better.
        sign: 1 where more is better, -1 where less is.
        words: What is said after a number of it.
    """

    key: str
    title: str
    read: Reader
    unit: str
    best: str = ""
    sign: Literal[1, -1] = 1
    words: str = ""

    def across(self, launches: Group) -> Estimate | None:
        """The number over all launches of a configuration."""
        return across_launches(launches, self.read)


def _latency(name: str) -> Reader:
    return lambda case: latency_median(case, name)


def _counted(read: Callable[[Case], float | None]) -> Reader:
    """A reader of what is counted: exact."""

    def reader(case: Case) -> Estimate | None:
        value = read(case)
        return None if value is None else Estimate(value, 0.0)

    return reader


def _throughput(case: Case) -> Estimate | None:
    """One run gives one observation: no interval."""
    speed = tokens_per_second(case.totals) if case.totals else None
    return Estimate(speed, None) if speed else None


SAVED: Final = Outcome(
    "sweep-saved", "Prompt tokens saved, %", _counted(saved_percent), "%", "Most saved",
    words="of prompt tokens",
)  # fmt: skip
FIRST_TOKEN: Final = Outcome(
    "sweep-ttft", "First token of the model, median", _latency("ttft"), "ns",
    "Earliest first token, median", -1,
)  # fmt: skip
DECODE: Final = Outcome(
    "sweep-decode", "Decode step on the GPU, median", graph_device_time, "ns",
    "Shortest decode step on the GPU, median", -1,
)  # fmt: skip
STEP: Final = Outcome(
    "sweep-step", "Step, median", _latency("step"), "ns", "Shortest step, median", -1
)
GATHER: Final = Outcome("sweep-gather", "Gather, GB/s", gather_rate, "GB/s", "Fastest gather")
PREPARE: Final = Outcome("sweep-prepare", "Prepare, median", _latency("prepare"), "ns")
TOKENS: Final = Outcome(
    "sweep-tokens", "Throughput, tokens/s in and out", _throughput, "tokens/s",
    "Highest throughput", words="in and out",
)  # fmt: skip
MEMORY: Final = Outcome("sweep-memory", "Memory allocated", _counted(allocated_bytes), "B")
OUTCOMES: Final = (SAVED, FIRST_TOKEN, DECODE, STEP, GATHER, PREPARE, TOKENS, MEMORY)
"""In the order of what a reader asks first."""


def group_launches(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases of equal swept settings together, in the order of the record."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(json.dumps(case.axis, sort_keys=True), []).append(case)
    return list(found.values())


def middle_launches(groups: Sequence[Group]) -> list[Case]:
    """Of each group the launch whose step has the middle median.

    Where the number of launches is even it is the faster of the two in the middle; where none
    has steps it is the first.
    """
    return [_middle(group) for group in groups]


def _middle(launches: Group) -> Case:
    steps = [latency_median(case, "step") for case in launches]
    timed = sorted((step.value, n) for n, step in enumerate(steps) if step)
    return launches[timed[(len(timed) - 1) // 2][1]] if timed else launches[0]


def across_launches(launches: Group, read: Reader) -> Estimate | None:
    """Median over launches, with the interval over launches; of a single one its own."""
    found = [estimate for case in launches if (estimate := read(case)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    return summarize([estimate.value for estimate in found]).estimate


def ends_of(estimate: Estimate) -> tuple[float, float]:
    """Where its interval ends; the value twice where there is none."""
    half = estimate.half_width or 0.0
    below, above = estimate.arms or (half, half)
    return estimate.value - below, estimate.value + above


@dataclass(frozen=True)
class Best:
    """The best of a sweep, and what it is better than.

    Attributes:
        estimate: The best.
        at: Its setting.
        alike: So many other settings do not differ from it beyond the intervals.
        worst: The worst.
        worst_at: Its setting.
    """

    estimate: Estimate
    at: str
    alike: int
    worst: Estimate
    worst_at: str


def find_best(outcome: Outcome, groups: Sequence[Group]) -> Best | None:
    """The best of an outcome; None where the settings do not change it."""
    found = [
        (estimate, settings_text(group[0]))
        for group in groups
        if (estimate := outcome.across(group)) is not None
    ]
    found.sort(key=lambda each: -outcome.sign * each[0].value)
    if not found or not differ([estimate for estimate, _ in found]):
        return None
    (best, at), (worst, worst_at) = found[0], found[-1]
    alike = sum(not differ([best, other]) for other, _ in found[1:])
    return Best(best, at, alike, worst, worst_at)


def settings_text(case: Case) -> str:
    """``policy=lru, memory_bytes=6.00 GiB``."""
    axes = axis_names([case])
    return ", ".join(f"{axes[path]}={show_setting(path, v)}" for path, v in case.axis.items())


_LEAST_CHANGE = 1.01  # what changes by less is no reason to choose a setting


def differ(estimates: Sequence[Estimate]) -> bool:
    """Whether some two of them are apart, intervals and all, by 1 % at least."""
    lows, highs = zip(*map(ends_of, estimates), strict=True)
    return bool(max(lows) > min(highs) * _LEAST_CHANGE)
