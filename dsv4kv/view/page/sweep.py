"""The sections of a sweep: what the swept settings changed, case by case."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from dsv4kv.measure.statistics import Estimate, estimate_rate
from dsv4kv.record.quantities import axis_names, axis_text, list_measured, setting_text
from dsv4kv.record.schema import Case, RunRecord
from dsv4kv.view.case import launches_table, processes_table
from dsv4kv.view.cells import measured, show_setting
from dsv4kv.view.charts.figure import (
    Chart,
    byte_ticks,
    plain_number,
    short_bytes,
    short_duration,
)
from dsv4kv.view.charts.latency import Samples, distribution_chart
from dsv4kv.view.charts.sweep import Metric, Point, sweep_chart
from dsv4kv.view.headline import unchanged
from dsv4kv.view.outcomes import OUTCOMES, STEP, Group, Outcome, differ, ends_of, middle_launches
from dsv4kv.view.page.sections import Section, step_sections
from dsv4kv.view.replay import sweep_table as replay_table
from dsv4kv.view.sweep import sweep_table
from dsv4kv.view.table import ABSENT, Row, Table, names, numbers

_READ_LAUNCHES = (
    "Every launch is a fresh process: what differs here is what a comparison must exceed."
)


def launch_section(record: RunRecord) -> Iterator[Section]:
    """How far the launches of one configuration are apart; nothing where there was one."""
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


_MOST_ROWS = 16  # histograms under each other
_READ = (
    "Medians and rates with their 95 % intervals, over launches where there are several; one "
    "launch's throughput has none, and what is counted needs none. What failed or was skipped is "
    "left out."
)


def sweep_sections(groups: Sequence[Sequence[Case]]) -> Iterator[Section]:
    """Charts against the swept settings, then the tables; a group is one setting's launches."""
    cases = middle_launches(groups)
    charts = list(_draw_outcomes(groups)) if cases[0].axis else []
    if any(chart.key == STEP.key for chart in charts):
        charts += _step_chart(cases)
    yield Section(
        "sweep",
        "What the settings change",
        f"{_READ} {unchanged(groups)}".strip() if charts else "",
        charts=charts,
        tables={"sweep-table": _table(cases)},
    )
    yield from step_sections(cases, None)
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


def _draw_outcomes(groups: Sequence[Group]) -> Iterator[Chart]:
    """A chart of every outcome that the settings change."""
    cases = [group[0] for group in groups]
    axes = axis_names(cases)
    across = _across(cases, list(axes))
    for outcome in OUTCOMES:
        found = [
            (case, estimate)
            for case, group in zip(cases, groups, strict=True)
            if across in case.axis and (estimate := outcome.across(group)) is not None
        ]
        if found and differ([estimate for _, estimate in found]):
            yield _chart(outcome, found, axes, across)


def _chart(
    outcome: Outcome, found: Sequence[tuple[Case, Estimate]], axes: dict[str, str], across: str
) -> Chart:
    cases = [case for case, _ in found]
    is_ordered = _is_ordered(cases, across)
    metric = Metric(
        outcome.key,
        outcome.title,
        [
            Point(
                case.axis[across] if is_ordered else setting_text(case.axis[across]),
                _line(case, axes, across),
                estimate.value,
                ends_of(estimate) if estimate.half_width else None,
            )
            for case, estimate in found
        ],
        _SHOW[outcome.unit],
        byte_ticks if outcome.unit == "B" else None,
        {case.axis[across]: show_setting(across, case.axis[across]) for case in cases}
        if across.endswith("_bytes")
        else {},
        may_be_log=outcome.unit != "%",
    )
    return sweep_chart(metric, axes[across])


def _across(cases: Sequence[Case], paths: Sequence[str]) -> str:
    """The setting for the x axis: a numeric one, with most values, the last of equals."""

    def weight(path: str) -> tuple[bool, int]:
        return _is_ordered(cases, path), len({str(case.axis.get(path)) for case in cases})

    return max(reversed(paths), key=weight)


def _is_ordered(cases: Sequence[Case], path: str) -> bool:
    """Whether all values of a setting are numbers."""
    values = [case.axis[path] for case in cases if path in case.axis]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _line(case: Case, axes: dict[str, str], across: str) -> str:
    others = {path: value for path, value in case.axis.items() if path != across}
    return ", ".join(f"{axes[path]} {show_setting(path, value)}" for path, value in others.items())


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


_SHOW: Final[dict[str, Callable[[float], str]]] = {
    "ns": short_duration,
    "B": short_bytes,
    "%": lambda value: f"{plain_number(round(value, 1))} %",
    "GB/s": lambda value: plain_number(float(f"{value:.4g}")),
    "tokens/s": lambda value: plain_number(float(f"{value:.4g}")),
}
