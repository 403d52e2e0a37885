"""The sections of a sweep: what the swept settings changed, case by case."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from dsv4kv.measure.statistics import Estimate, estimate_rate
from dsv4kv.report.axes import axis_names, axis_text, setting_text
from dsv4kv.report.cells import ABSENT, format_estimate
from dsv4kv.report.decode import graph_device_time
from dsv4kv.report.facts import tokens_per_second
from dsv4kv.report.numbers import (
    allocated_bytes,
    gather_rate,
    latency_median,
    saved_percent,
)
from dsv4kv.report.page.charts.latency import Samples, distribution_chart
from dsv4kv.report.page.charts.marks import byte_ticks, plain_number
from dsv4kv.report.page.charts.sweep import Metric, Point, sweep_chart
from dsv4kv.report.page.figure import Chart, short_bytes, short_duration
from dsv4kv.report.page.html_table import Cell, Column, HtmlTable, convert_table
from dsv4kv.report.page.launches import Reader, across_launches, middle_launches
from dsv4kv.report.page.section import Section
from dsv4kv.report.record import Case
from dsv4kv.report.replay_tables import sweep_table as replay_table
from dsv4kv.report.sweep import sweep_table

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
        tables=[convert_table(_table(cases), "sweep-table", len(axis_names(cases)))],
    )
    if any(case.operations for case in cases):
        yield Section(
            "operations",
            "How fast bytes moved",
            "Useful bytes over time with half of the 95 % interval; cold calls where both were "
            "measured.",
            tables=[_rates_table(cases)],
        )


def _table(cases: Sequence[Case]) -> Table:
    if any(case.replay for case in cases):
        return replay_table(cases, axis_names(cases))
    return sweep_table(cases)


def _sweep_charts(groups: Sequence[Sequence[Case]]) -> Iterator[Chart]:
    cases = [group[0] for group in groups]
    names = axis_names(cases)
    if not names:
        return
    across = _across(cases, list(names))
    for key, (title, read, show) in _METRICS.items():
        points = [
            Point(_place(case.axis[across]), _line(case, names, across), estimate)
            for case, group in zip(cases, groups, strict=True)
            if across in case.axis and (estimate := across_launches(group, read)) is not None
        ]
        if points:
            ticks = byte_ticks if show is short_bytes else None
            yield sweep_chart(Metric(key, title, points, show, ticks), names[across])


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


def _line(case: Case, names: dict[str, str], across: str) -> str:
    others = {path: value for path, value in case.axis.items() if path != across}
    return ", ".join(f"{names[path]} {setting_text(value)}" for path, value in others.items())


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


def _rates_table(cases: Sequence[Case]) -> HtmlTable:
    """A row per case, a column per operation: wide, but all numbers of a sweep in one place."""
    operations = dict.fromkeys(
        (each.name, each.layer_type) for case in cases for each in case.operations
    )
    rows = []
    for case in cases:
        rates = {
            (each.name, each.layer_type): estimate_rate(each.bytes, each.samples_ns)
            for each in case.operations
            if each.temperature in (None, "cold")
        }
        rows.append([Cell(axis_text(case) or ABSENT), *(_cell(rates.get(o)) for o in operations)])
    headers = [Column("case", False, False)]
    headers += [
        Column(f"{name} {layers}", True, any(row[n].spread for row in rows))
        for n, (name, layers) in enumerate(operations, 1)
    ]
    return HtmlTable("rate-table", "Rates, GB/s", "", headers, rows, 1, frozenset())


def _cell(rate: Estimate | None) -> Cell:
    value, sign, spread = format_estimate(rate).partition(" ± ")
    return Cell(value, f"± {spread}" if sign else "")


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
