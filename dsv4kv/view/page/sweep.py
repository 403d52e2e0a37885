"""The sections of a sweep: what the swept settings changed, case by case."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dsv4kv.measure.statistics import Estimate, estimate_rate, summarize
from dsv4kv.record.quantities import (
    allocated_bytes,
    axis_names,
    axis_text,
    gather_rate,
    latency_median,
    list_measured,
    saved_percent,
    setting_text,
)
from dsv4kv.record.schema import Case, RunRecord
from dsv4kv.view.case import graph_device_time, launches_table, processes_table
from dsv4kv.view.cells import measured
from dsv4kv.view.charts.figure import (
    Chart,
    byte_ticks,
    plain_number,
    short_bytes,
    short_duration,
)
from dsv4kv.view.charts.latency import Samples, distribution_chart
from dsv4kv.view.charts.sweep import Metric, Point, sweep_chart
from dsv4kv.view.facts import tokens_per_second
from dsv4kv.view.page.sections import Section
from dsv4kv.view.replay import sweep_table as replay_table
from dsv4kv.view.sweep import sweep_table
from dsv4kv.view.table import ABSENT, Row, Table, names, numbers

_READ_LAUNCHES = (
    "Every launch is a fresh process: what differs here is what a comparison must exceed."
)

Reader = Callable[[Case], Estimate | None]
"""Reads a number of a case; None where it has none."""


def group_launches(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases of equal swept settings together, in the order of the record."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(json.dumps(case.axis, sort_keys=True), []).append(case)
    return list(found.values())


def middle_launches(groups: Sequence[Sequence[Case]]) -> list[Case]:
    """Of each group the launch whose step has the middle median.

    Where the number of launches is even it is the faster of the two in the middle; where none
    has steps it is the first.
    """
    return [_middle(group) for group in groups]


def across_launches(launches: Sequence[Case], read: Reader) -> Estimate | None:
    """Median over launches, with the interval over launches; of a single one its own."""
    found = [estimate for case in launches if (estimate := read(case)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    return summarize([estimate.value for estimate in found]).estimate


def launch_section(record: RunRecord) -> Iterator[Section]:
    """How far the launches of one configuration lie apart; nothing where there was one."""
    rows = [
        Samples(f"launch {case.launch}", latency.samples_ns)
        for case in record.cases
        for latency in case.latencies
        if latency.name == "step" and latency.samples_ns
    ]
    if not record.launches:
        return
    charts = [distribution_chart(rows, shared=True)] if len(rows) > 1 else []
    yield Section(
        "launches",
        "How far launches differ",
        _READ_LAUNCHES,
        charts=[replace(chart, key="launches", title="Step in each launch") for chart in charts],
        tables={
            "process-table": processes_table(record.launches),
            "launch-table": launches_table(list_measured(record), "Medians"),
        },
    )


def _middle(launches: Sequence[Case]) -> Case:
    steps = [latency_median(case, "step") for case in launches]
    timed = sorted((step.value, n) for n, step in enumerate(steps) if step)
    return launches[timed[(len(timed) - 1) // 2][1]] if timed else launches[0]


_MOST_ROWS = 16  # histograms under each other
_READ = (
    "Points are medians or rates with their 95 % intervals, over launches where there are "
    "several; one launch's throughput and memory have none. What failed or was skipped has no "
    "point."
)


def sweep_sections(groups: Sequence[Sequence[Case]]) -> Iterator[Section]:
    """Charts against the swept settings, then the tables; a group is one setting's launches."""
    cases = middle_launches(groups)
    yield Section(
        "sweep",
        "What the settings change",
        _READ,
        charts=[*_sweep_charts(groups), *_step_chart(cases)],
        tables={"sweep-table": _table(cases)},
    )
    if any(case.operations for case in cases):
        yield Section(
            "operations",
            "How fast bytes moved",
            "Useful bytes over time with half of the 95 % interval; cold calls where both were "
            "measured.",
            tables={"rate-table": _rates_table(cases)},
        )


def _table(cases: Sequence[Case]) -> Table:
    if any(case.replay for case in cases):
        return replay_table(cases, axis_names(cases))
    return sweep_table(cases)


def _sweep_charts(groups: Sequence[Sequence[Case]]) -> Iterator[Chart]:
    cases = [group[0] for group in groups]
    axes = axis_names(cases)
    if not axes:
        return
    across = _across(cases, list(axes))
    for key, (title, read, show) in _METRICS.items():
        points = [
            Point.measured(_place(case.axis[across]), _line(case, axes, across), estimate)
            for case, group in zip(cases, groups, strict=True)
            if across in case.axis and (estimate := across_launches(group, read)) is not None
        ]
        if points:
            ticks = byte_ticks if show is short_bytes else None
            yield sweep_chart(Metric(key, title, points, show, ticks), axes[across])


def _across(cases: Sequence[Case], paths: Sequence[str]) -> str:
    """The setting for the x axis: a numeric one, with most values, the last of equals."""

    def weight(path: str) -> tuple[bool, int]:
        values = [case.axis.get(path) for case in cases]
        return all(isinstance(value, int | float) for value in values), len(set(map(str, values)))

    return max(reversed(paths), key=weight)


def _place(value: Any) -> Any:
    """A number as it is, everything else (such as a list) as text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else setting_text(value)


def _line(case: Case, axes: dict[str, str], across: str) -> str:
    others = {path: value for path, value in case.axis.items() if path != across}
    return ", ".join(f"{axes[path]} {setting_text(value)}" for path, value in others.items())


def _step_chart(cases: Sequence[Case]) -> list[Chart]:
    rows = [
        Samples(axis_text(case), latency.samples_ns)
        for case in cases
        for latency in case.latencies
        if latency.name == "step" and latency.samples_ns
    ]
    if not 0 < len(rows) <= _MOST_ROWS:
        return []
    chart = distribution_chart(rows, shared=True)
    return [replace(chart, key="cases", title="Step in each case")]


def _rates_table(cases: Sequence[Case]) -> Table:
    """A row per case, a column per operation: wide, but all numbers of a sweep in one place."""
    operations = dict.fromkeys(
        (each.name, each.layer_type) for case in cases for each in case.operations
    )
    rows: list[Row] = []
    for case in cases:
        rates = {
            (each.name, each.layer_type): estimate_rate(each.bytes, each.samples_ns)
            for each in case.operations
            if each.temperature in (None, "cold")
        }
        rows.append((axis_text(case) or ABSENT, *(measured(rates.get(o)) for o in operations)))
    headers = (f"{name} {layers}" for name, layers in operations)
    return Table("Rates, GB/s", [*names("case"), *numbers(*headers)], rows)


def _exactly(read: Callable[[Case], float | None]) -> Reader:
    def reader(case: Case) -> Estimate | None:
        value = read(case)
        return None if value is None else Estimate(value, None)

    return reader


def _throughput(case: Case) -> float | None:
    return tokens_per_second(case.totals) if case.totals else None


_METRICS: dict[str, tuple[str, Reader, Callable[[float], str]]] = {
    "sweep-decode": ("Decode step on the GPU, median", graph_device_time, short_duration),
    "sweep-step": ("Step, median", lambda case: latency_median(case, "step"), short_duration),
    "sweep-gather": ("Gather, GB/s", gather_rate, plain_number),
    "sweep-prepare": (
        "Prepare, median",
        lambda case: latency_median(case, "prepare"),
        short_duration,
    ),
    "sweep-tokens": ("Throughput, tokens/s in and out", _exactly(_throughput), plain_number),
    "sweep-saved": ("Prompt tokens saved, %", _exactly(saved_percent), plain_number),
    "sweep-ttft": (
        "First token of the model, median",
        lambda case: latency_median(case, "ttft"),
        short_duration,
    ),
    "sweep-memory": ("Memory allocated", _exactly(allocated_bytes), short_bytes),
}
