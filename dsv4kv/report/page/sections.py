"""The sections of a page: what a case has charts and tables for, and how to read them."""

import json
from collections.abc import Iterator, Sequence

from dsv4kv.report.datasheet import datasheet_gbps
from dsv4kv.report.decode import decode_table
from dsv4kv.report.findings import Finding, judge_results, judge_status
from dsv4kv.report.page.charts.latency import Samples, distribution_chart, order_chart
from dsv4kv.report.page.charts.operations import Roof, operation_rates
from dsv4kv.report.page.charts.rates import rates_chart
from dsv4kv.report.page.charts.roofline import roofline_chart
from dsv4kv.report.page.charts.timeline import telemetry_chart, tell_spans
from dsv4kv.report.page.html_table import convert_table
from dsv4kv.report.page.kernels import kernel_section
from dsv4kv.report.page.memory import memory_sections
from dsv4kv.report.page.replay import replay_sections
from dsv4kv.report.page.section import Section
from dsv4kv.report.page.telemetry import (
    machine_facts,
    telemetry_tracks,
    tells_limits,
    throttled_spans,
)
from dsv4kv.report.record import Case, GpuFacts, RunRecord
from dsv4kv.report.replay_view import judge_replay
from dsv4kv.report.tables import latencies_table, operations_table
from dsv4kv.report.telemetry import judge_telemetry, telemetry_table
from dsv4kv.report.yardstick import yardsticks

_READ_LATENCY = (
    "The line is the median in its 95 % interval within this run; dashes are the 90th and 99th "
    "percentile where enough samples lie beyond them. No sample is left out."
)
_READ_RATES = (
    "Useful bytes over time, with 95 % intervals. Dark lines are plain memory traffic measured in "
    "the same process, and the datasheet's rate of a known GPU. Numbers in the roofline are those "
    "of the rows."
)
_READ_HOT = " Filled marks are cold calls, hollow ones hot or L2-resident."
_PACE = ("decode_graph_device", "step", "decode_step")


def case_sections(case: Case, gpu: GpuFacts | None) -> Iterator[Section]:
    """Everything that one case has to tell, in the order of the page; ``gpu`` is the one used."""
    if case.replay:
        yield from replay_sections(case, case.replay)
        return
    if any(latency.samples_ns for latency in case.latencies):
        yield _latency_section(case)
    if case.operations:
        yield _operation_section(case, _roofs(case, gpu))
    yield from memory_sections(case)
    yield from _machine_sections(case)
    if case.profile and case.profile.table:
        yield kernel_section(case.profile.table, next(iter(yardsticks(case)), None))


def judge_case(case: Case) -> list[Finding]:
    """Everything that a case found out about itself."""
    if case.replay:
        return [*judge_status(case), *judge_replay(case)]
    return [*judge_status(case), *judge_results(case), *judge_telemetry(case)]


def check_section(cases: Sequence[tuple[str, Case]]) -> Section:
    """What the run found out about itself; with several cases each under its name."""
    found = [
        Finding(finding.level, f"{name}: {finding.sentence}" if name else finding.sentence)
        for name, case in cases
        for finding in judge_case(case)
        if finding.is_problem or not name
    ]
    checks = sum(case.verification.checks for _, case in cases)
    if not found:
        compared = f"; {checks:,} outputs compared" if checks else ""
        found = [Finding("good", f"no problem in any case{compared}")]
    return Section("checks", "Is it right", findings=found)


def config_text(record: RunRecord) -> str:
    """The resolved configuration of the first case, as JSON."""
    return json.dumps(record.cases[0].config, indent=2) if record.cases else ""


def _latency_section(case: Case) -> Section:
    rows = [Samples(each.name, each.samples_ns) for each in case.latencies if each.samples_ns]
    pace = next((row for name in _PACE for row in rows if row.name == name), rows[0])
    decode = decode_table(case)
    return Section(
        "latency",
        "How long it took",
        _READ_LATENCY,
        charts=[distribution_chart(rows), order_chart(pace)],
        tables=[
            *([convert_table(decode, "decode-table")] if decode else []),
            convert_table(latencies_table(case.latencies), "latency-table"),
        ],
        beside=True,
    )


def _roofs(case: Case, gpu: GpuFacts | None) -> list[Roof]:
    roofs = [Roof(each.name, rate.value) for each in yardsticks(case) if (rate := each.rate)]
    promised = datasheet_gbps(gpu) if gpu and case.device == "cuda" else None
    return [*roofs, Roof("datasheet", promised)] if promised else roofs


def _operation_section(case: Case, roofs: Sequence[Roof]) -> Section:
    rates = operation_rates(case)
    has_hot = any(each.temperature for each in rates)
    charts = [rates_chart(rates, roofs), roofline_chart(rates, roofs)] if rates else []
    return Section(
        "operations",
        "How fast bytes moved",
        _READ_RATES + (_READ_HOT if has_hot else ""),
        charts=charts,
        tables=[convert_table(operations_table(case), "operation-table", names=2)],
    )


def _machine_sections(case: Case) -> Iterator[Section]:
    tracks = telemetry_tracks(case.telemetry) if case.telemetry else []
    if not case.telemetry or not tracks:
        return
    samples = case.telemetry.gpu_samples
    spans = throttled_spans(samples) if samples else []
    note = tell_spans(spans) if samples and tells_limits(samples) else ""
    table = telemetry_table(case)
    yield Section(
        "machine",
        "What the machine did",
        note,
        machine_facts(case.telemetry),
        charts=[telemetry_chart(tracks, spans, note)],
        tables=[convert_table(table, "machine-table")] if table else [],
    )
