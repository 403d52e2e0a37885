"""What came out of a case, or of several launches of it, as numbers that settings change."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dsv4kv.measure.statistics import Estimate, divide, summarize
from dsv4kv.runs.quantities import (
    allocated_bytes,
    axis_names,
    gather_rate,
    latency_median,
    saved_percent,
)
from dsv4kv.runs.schema import Case
from dsv4kv.units import counted, format_bytes
from dsv4kv.view import plots
from dsv4kv.view.facts import tokens_per_second
from dsv4kv.view.quantity import format_number, format_quantity, format_setting
from dsv4kv.view.table import Chart

Reader = Callable[[Case], Estimate | None]
"""Reads a number of a case; None where it has none."""
Group = Sequence[Case]
"""Launches of one configuration."""

_LEAST_CHANGE = 1.01  # what changes by less is no reason to choose a setting
_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


@dataclass(frozen=True)
class Outcome:
    """A number of a case.

    Attributes:
        title: What it is.
        read: Reads it.
        unit: ``ns``, ``B``, ``%`` (of prompt tokens), ``GB/s`` or ``tokens/s``.
        best: What the best of a sweep is called; empty where neither more nor less is better.
        sign: 1 where more is better, -1 where less is.
    """

    title: str
    read: Reader
    unit: str
    best: str = ""
    sign: Literal[1, -1] = 1

    def across(self, launches: Group) -> Estimate | None:
        """Median over the launches, with its interval over launches; of a single one its own."""
        found = [estimate for case in launches if (estimate := self.read(case)) is not None]
        if len(found) < 2:
            return found[0] if found else None
        return summarize([estimate.value for estimate in found]).estimate

    def text(self, estimate: Estimate) -> str:
        """``8.12 ± 0.30 ms``."""
        return format_with_unit(estimate, self.unit)


def format_with_unit(estimate: Estimate, unit: str) -> str:
    """A number with its interval and its unit; durations in the largest unit that keeps 1."""
    if unit == "B":
        return format_bytes(estimate.value)
    if unit == "ns":
        unit, size = next((each for each in _UNITS if estimate.value >= each[1]), _UNITS[-1])
        return f"{format_quantity(estimate, 1 / size)} {unit}"
    return f"{format_quantity(estimate)} {unit}"


def estimate_bar(name: str, estimate: Estimate, unit: str) -> plots.Bar:
    """A row of a chart."""
    low, high = ends_of(estimate)
    ends = (max(low, estimate.value * 0.01), high) if estimate.half_width else None
    return plots.Bar(name, estimate.value, format_with_unit(estimate, unit), ends)


def graph_device_time(case: Case) -> Estimate | None:
    """Median time of a decode step on the GPU in ns, as a graph if it ran as one."""
    graph = latency_median(case, "decode_graph_device")
    return graph or latency_median(case, "decode_eager_device")


def _throughput(case: Case) -> Estimate | None:
    speed = tokens_per_second(case.totals) if case.totals else None
    return Estimate(speed, None) if speed else None


def _exact(read: Callable[[Case], float | None]) -> Reader:
    def reader(case: Case) -> Estimate | None:
        value = read(case)
        return None if value is None else Estimate(value, 0.0)

    return reader


def _latency(name: str) -> Reader:
    return lambda case: latency_median(case, name)


SAVED: Final = Outcome("Prompt tokens saved", _exact(saved_percent), "%", "Most saved")
FIRST_TOKEN: Final = Outcome("TTFT, median", _latency("ttft"), "ns", "Lowest TTFT, median", -1)
DECODE: Final = Outcome(
    "Decode step on the GPU, median", graph_device_time, "ns", "Shortest decode step", -1
)
STEP: Final = Outcome("Step, median", _latency("step"), "ns", "Shortest step", -1)
GATHER: Final = Outcome("Gather", gather_rate, "GB/s", "Fastest gather")
PREPARE: Final = Outcome("Prepare, median", _latency("prepare"), "ns")
TOKENS: Final = Outcome("Throughput", _throughput, "tokens/s", "Highest throughput")
MEMORY: Final = Outcome("Memory allocated", _exact(allocated_bytes), "B")
OUTCOMES: Final = (SAVED, FIRST_TOKEN, DECODE, STEP, GATHER, PREPARE, TOKENS, MEMORY)
"""The most important first."""


def group_launches(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases of equal swept settings together, in the order of the record."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(json.dumps(case.axis, sort_keys=True), []).append(case)
    return list(found.values())


def middle_launch(launches: Group) -> Case:
    """The launch whose step has the middle median, the faster of two; else the first."""
    steps = [latency_median(case, "step") for case in launches]
    timed = sorted((step.value, n) for n, step in enumerate(steps) if step)
    return launches[timed[(len(timed) - 1) // 2][1]] if timed else launches[0]


def ends_of(estimate: Estimate) -> tuple[float, float]:
    """Where its interval ends; the value twice where there is none."""
    half = estimate.half_width or 0.0
    below, above = estimate.arms or (half, half)
    return estimate.value - below, estimate.value + above


def differ(estimates: Sequence[Estimate]) -> bool:
    """Whether some two of them are apart, intervals and all, by 1 % at least."""
    lows, highs = zip(*map(ends_of, estimates), strict=True)
    return bool(max(lows) > min(highs) * _LEAST_CHANGE)


@dataclass(frozen=True)
class Best:
    """The best of a sweep, and what it is better than.

    Attributes:
        estimate: The best.
        at: Its setting.
        alike: Number of other settings that do not differ from it beyond the intervals.
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
    return ", ".join(f"{axes[path]}={format_setting(path, v)}" for path, v in case.axis.items())


def best_sentences(groups: Sequence[Group]) -> Iterator[str]:
    """``Shortest step: 1.2 ± 0.1 ms at block_tokens=256, 1.9 times as fast as at …``.

    Only of outcomes whose interval is known.
    """
    for outcome in OUTCOMES:
        best = find_best(outcome, groups) if outcome.best else None
        if best and best.estimate.half_width is not None:
            alike = f" (and {counted(best.alike, 'other')} alike)" if best.alike else ""
            figure, gain = outcome.text(best.estimate), _gain(outcome, best)
            yield f"{outcome.best}: {figure} at {best.at}{alike}, {gain} at {best.worst_at}."


def _gain(outcome: Outcome, best: Best) -> str:
    if outcome.unit == "%":
        return f"{best.estimate.value - best.worst.value:.1f} points more than"
    if not best.worst.value or not best.estimate.value:
        return f"{format_number(abs(best.estimate.value - best.worst.value))} {outcome.unit} from"
    less = outcome.sign < 0
    ratio = divide(best.worst, best.estimate) if less else divide(best.estimate, best.worst)
    return f"{format_quantity(ratio)} times as {'fast' if less else 'much'} as"


def unchanged_sentence(groups: Sequence[Group]) -> str:
    """What the settings do not change; empty where they change everything."""
    same = []
    for outcome in OUTCOMES:
        found = [known for group in groups if (known := outcome.across(group)) is not None]
        if len(found) > 1 and not differ(found):
            ends = (f(found, key=lambda each: each.value) for f in (min, max))
            texts = dict.fromkeys(map(outcome.text, ends))
            same.append(f"{outcome.title.partition(',')[0].lower()} ({' to '.join(texts)})")
    return f"The same at every setting, to 1 % or its interval: {'; '.join(same)}." if same else ""


def sweep_charts(groups: Sequence[Group]) -> Iterator[Chart]:
    """A chart of every outcome that the settings change, over the setting with most values."""
    cases = [group[0] for group in groups]
    axes = axis_names(cases)
    if not axes:
        return
    across = max(reversed(list(axes)), key=lambda path: (_is_ordered(cases, path),
                 len({str(case.axis.get(path)) for case in cases})))  # fmt: skip
    for outcome in OUTCOMES:
        found = [
            (case.axis, estimate)
            for case, group in zip(cases, groups, strict=True)
            if across in case.axis and (estimate := outcome.across(group)) is not None
        ]
        if found and differ([estimate for _, estimate in found]):
            yield _chart(outcome, found, axes, across, ordered=_is_ordered(cases, across))


def _chart(
    outcome: Outcome,
    found: Sequence[tuple[dict[str, Any], Estimate]],
    axes: dict[str, str],
    across: str,
    *,
    ordered: bool,
) -> Chart:
    def line(axis: dict[str, Any]) -> str:
        others = ((p, value) for p, value in axis.items() if p != across)
        return ", ".join(f"{axes[p]} {format_setting(p, value)}" for p, value in others)

    if not ordered:
        rows = [
            estimate_bar(
                ", ".join(filter(None, (format_setting(across, axis[across]), line(axis)))),
                estimate,
                outcome.unit,
            )
            for axis, estimate in found
        ]
        return plots.bars(outcome.title, rows, unit=outcome.unit)
    series = []
    for name in dict.fromkeys(line(axis) for axis, _ in found):
        points = sorted(
            ((axis[across], estimate) for axis, estimate in found if line(axis) == name),
            key=lambda point: float(point[0]),
        )
        lows, highs = zip(*(ends_of(estimate) for _, estimate in points), strict=True)
        series.append(
            plots.Line(name, [x for x, _ in points], [e.value for _, e in points], lows, highs)
        )
    names = {float(axis[across]): format_setting(across, axis[across]) for axis, _ in found}
    return plots.lines(
        outcome.title, series, x=axes[across], unit=outcome.unit, x_names=names, form="points"
    )


def _is_ordered(cases: Sequence[Case], path: str) -> bool:
    """Whether all values of a setting are numbers."""
    values = [case.axis[path] for case in cases if path in case.axis]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
