"""Runs of several fresh processes: one number for all, and which launch stands for the rest."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dsv4kv.measure.statistics import Estimate, summarize
from dsv4kv.report.launches import launches_table, processes_table
from dsv4kv.report.numbers import latency_median
from dsv4kv.report.page.charts.latency import Samples, distribution_chart
from dsv4kv.report.page.html_table import convert_table
from dsv4kv.report.page.section import Section
from dsv4kv.report.quantities import list_measured
from dsv4kv.report.record import Case, RunRecord

_READ = "Every launch is a fresh process: what differs here is what a comparison must exceed."

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
        _READ,
        charts=[replace(chart, key="launches", title="Step in each launch") for chart in charts],
        tables=[
            convert_table(processes_table(record.launches), "process-table"),
            convert_table(launches_table(list_measured(record), "Medians"), "launch-table", 2),
        ],
    )


def _middle(launches: Sequence[Case]) -> Case:
    steps = [latency_median(case, "step") for case in launches]
    timed = sorted((step.value, n) for n, step in enumerate(steps) if step)
    return launches[timed[(len(timed) - 1) // 2][1]] if timed else launches[0]
