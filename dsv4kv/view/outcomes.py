"""What came out of a case, or of several launches of it, as numbers that settings change."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from dsv4kv.runs import quantities as q
from dsv4kv.runs.schema import Case
from dsv4kv.runs.statistics import Estimate, divide, summarize
from dsv4kv.units import counted, format_bytes
from dsv4kv.view import plots
from dsv4kv.view import table as tb
from dsv4kv.view.facts import tokens_per_second

Group = Sequence[Case]
"""Launches of one configuration."""

_LEAST_CHANGE = 1.01  # what changes by less is no reason to choose a setting
_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


@dataclass(frozen=True)
class Outcome:
    """A number of a case."""

    title: str
    read: Callable[[Case], Estimate | None]  # None where a case has no such number
    unit: str  # ns, B, % (of prompt tokens), GB/s or tokens/s
    best: str = ""  # name of a sweep's best; empty where neither more nor less is better
    sign: Literal[1, -1] = 1  # 1 where more is better, -1 where less is

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
        return f"{tb.format_quantity(estimate, 1 / size)} {unit}"
    return f"{tb.format_quantity(estimate)} {unit}".rstrip()


def estimate_bar(name: str, estimate: Estimate, unit: str) -> plots.Bar:
    low, high = ends(estimate)
    arms = (max(low, estimate.value * 0.01), high) if estimate.half_width else None
    return plots.Bar(name, estimate.value, format_with_unit(estimate, unit), arms)


def _latency(case: Case, *names: str) -> Estimate | None:
    return next((found for name in names if (found := q.latency_median(case, name))), None)


def _exact(case: Case, read: Callable[[Case], float | None]) -> Estimate | None:
    value = read(case)
    return None if value is None else Estimate(value, 0.0)


def _throughput(case: Case) -> Estimate | None:
    speed = tokens_per_second(case.totals) if case.totals else None
    return Estimate(speed, None) if speed else None


DECODE: Final = Outcome(
    "Decode step on the GPU, median",
    lambda case: _latency(case, "decode_graph_device", "decode_eager_device"),
    "ns",
    "Shortest decode step",
    -1,
)
STEP: Final = Outcome(
    "Step, median", lambda case: _latency(case, "step"), "ns", "Shortest step", -1
)
GATHER: Final = Outcome("Gather", q.gather_rate, "GB/s", "Fastest gather")
PREPARE: Final = Outcome("Prepare, median", lambda case: _latency(case, "prepare"), "ns")
TOKENS: Final = Outcome("Throughput", _throughput, "tokens/s", "Highest throughput")
MEMORY: Final = Outcome("Memory allocated", partial(_exact, read=q.allocated_bytes), "B")
OUTCOMES: Final = (
    Outcome("Hit rate", partial(_exact, read=q.saved_percent), "%", "Highest hit rate"),
    Outcome("TTFT, median", lambda case: _latency(case, "ttft"), "ns", "Lowest TTFT, median", -1),
    *(DECODE, STEP, GATHER, PREPARE, TOKENS, MEMORY),
)
"""The most important first."""


def axis_columns(cases: Sequence[Case], case_of: Callable[[Any], Case]) -> list[tb.Column]:
    """A column for every swept setting, of rows that have a case."""

    def column(path: str, name: str) -> tb.Column:
        def read(row: Any) -> str | None:
            axis = case_of(row).axis
            return tb.setting(path, axis[path]) if path in axis else None

        return name.replace("_", " "), read

    return [column(path, name) for path, name in q.axis_names(cases).items()]


def group_launches(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases of equal swept settings together, in the order of the record."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(json.dumps(case.axis, sort_keys=True), []).append(case)
    return list(found.values())


def middle_launch(launches: Group) -> Case:
    """The launch whose step has the middle median, the faster of two; else the first."""
    steps = [q.latency_median(case, "step") for case in launches]
    timed = sorted((step.value, n) for n, step in enumerate(steps) if step)
    return launches[timed[(len(timed) - 1) // 2][1]] if timed else launches[0]


def ends(estimate: Estimate) -> tuple[float, float]:
    half = estimate.half_width or 0.0
    below, above = estimate.arms or (half, half)
    return estimate.value - below, estimate.value + above


def _differ(estimates: Sequence[Estimate]) -> bool:
    lows, highs = zip(*map(ends, estimates), strict=True)
    return bool(max(lows) > min(highs) * _LEAST_CHANGE)


def best_sentences(groups: Sequence[Group]) -> Iterator[str]:
    """``Shortest step: 1.2 ± 0.1 ms at block_tokens=256, 1.9 times as fast as at …``.

    Only of outcomes that the settings change and whose interval is known.
    """
    axes = q.axis_names([group[0] for group in groups if group])

    def setting(case: Case) -> str:
        return ", ".join(f"{axes[p]}={tb.setting(p, v)}" for p, v in case.axis.items())

    for outcome in OUTCOMES:
        found = [
            (estimate, setting(group[0]))
            for group in groups
            if (estimate := outcome.across(group)) is not None
        ]
        found.sort(key=lambda each: -outcome.sign * each[0].value)
        if not outcome.best or not found or not _differ([estimate for estimate, _ in found]):
            continue
        (best, at), (worst, worst_at) = found[0], found[-1]
        if best.half_width is None:
            continue
        others = sum(not _differ([best, other]) for other, _ in found[1:])
        alike = f" (and {counted(others, 'other')} alike)" if others else ""
        if outcome.unit == "%":
            gain = f"{best.value - worst.value:.1f} points more than"
        elif not worst.value or not best.value:
            gain = f"{tb.number(abs(best.value - worst.value))} {outcome.unit} from"
        else:
            less = outcome.sign < 0
            ratio = tb.format_quantity(divide(worst, best) if less else divide(best, worst))
            gain = f"{ratio} times as {'fast' if less else 'much'} as"
        yield f"{outcome.best}: {outcome.text(best)} at {at}{alike}, {gain} at {worst_at}."


def unchanged_sentence(groups: Sequence[Group]) -> str:
    """What the settings do not change; empty where they change everything."""
    same = []
    for outcome in OUTCOMES:
        found = [known for group in groups if (known := outcome.across(group)) is not None]
        bounded = all((each.half_width or 0) < abs(each.value) for each in found)
        if len(found) > 1 and bounded and not _differ(found):
            outer = (f(found, key=lambda each: each.value) for f in (min, max))
            texts = dict.fromkeys(map(outcome.text, outer))
            same.append(f"{outcome.title.partition(',')[0].lower()} ({' to '.join(texts)})")
    return f"The same at every setting, to 1 % or its interval: {'; '.join(same)}." if same else ""


def sweep_charts(groups: Sequence[Group]) -> Iterator[tb.Chart]:
    """A chart of each judged outcome that the settings change, over the largest axis."""
    cases = [group[0] for group in groups]
    axes = q.axis_names(cases)
    if not axes:
        return

    def is_ordered(path: str) -> bool:
        values = [case.axis[path] for case in cases if path in case.axis]
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)

    def rank(path: str) -> tuple[bool, int]:
        return is_ordered(path), len({str(case.axis.get(path)) for case in cases})

    across = max(reversed(list(axes)), key=rank)
    for outcome in (each for each in OUTCOMES if each.best):
        found = [
            (case.axis, estimate)
            for case, group in zip(cases, groups, strict=True)
            if across in case.axis and (estimate := outcome.across(group)) is not None
        ]
        known = any(estimate.half_width is not None for _, estimate in found)
        if known and _differ([estimate for _, estimate in found]):
            draw = _line_chart if is_ordered(across) else _bar_chart
            yield draw(outcome, found, axes, across)


_Found = Sequence[tuple[dict[str, Any], Estimate]]


def _others(axis: dict[str, Any], axes: dict[str, str], across: str) -> str:
    others = ((path, value) for path, value in axis.items() if path != across)
    return ", ".join(f"{axes[path]} {tb.setting(path, value)}" for path, value in others)


def _bar_chart(outcome: Outcome, found: _Found, axes: dict[str, str], across: str) -> tb.Chart:
    rows = []
    for axis, estimate in found:
        names = (tb.setting(across, axis[across]), _others(axis, axes, across))
        rows.append(estimate_bar(", ".join(filter(None, names)), estimate, outcome.unit))
    return plots.bars(outcome.title, rows, unit=outcome.unit)


def _line_chart(outcome: Outcome, found: _Found, axes: dict[str, str], across: str) -> tb.Chart:
    series: dict[str, list[tuple[float, Estimate]]] = {}
    for axis, estimate in found:
        series.setdefault(_others(axis, axes, across), []).append((axis[across], estimate))
    lines = []
    for name, points in series.items():
        xs, estimates = zip(*sorted(points, key=lambda point: float(point[0])), strict=True)
        lows, highs = zip(*map(ends, estimates), strict=True)
        lines.append(plots.Line(name, xs, [each.value for each in estimates], lows, highs))
    names = {float(axis[across]): tb.setting(across, axis[across]) for axis, _ in found}
    return plots.lines(outcome.title, lines, x=axes[across], unit=outcome.unit, x_names=names)
