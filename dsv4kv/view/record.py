"""A record on a terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from dsv4kv.runs.quantities import (
    allocated_bytes,
    axis_names,
    axis_text,
    gather_rate,
    latency_median,
    measured_in,
    setting_text,
    yardsticks,
)
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.units import format_bytes
from dsv4kv.view.case import (
    backend_note,
    cache_table,
    decode_table,
    graph_device_time,
    latencies_table,
    launches_table,
    operations_table,
    processes_table,
)
from dsv4kv.view.cells import measured
from dsv4kv.view.facts import cache_facts, header, layers_text, tokens_per_second, totals_facts
from dsv4kv.view.findings import judge_results, judge_status
from dsv4kv.view.headline import report_answer
from dsv4kv.view.profile import report_profile
from dsv4kv.view.replay import list_replay_findings, report_replay
from dsv4kv.view.step import roofs_table, step_table
from dsv4kv.view.table import ABSENT, Finding, Level, Mark, Part, Table, Text, names, numbers
from dsv4kv.view.telemetry import held_table, judge_telemetry, telemetry_table

_MARKS: dict[str, Level] = {
    "complete": "good",
    "incomplete": "warning",
    "skipped": "missing",
    "failed": "bad",
}
_LONG_STEP_NS = 1e8


def sweep_table(cases: Sequence[Case]) -> Table:
    """One row per case. The gather rate is that of all gather operations together, cold ones."""
    backends = dict.fromkeys(backend_note(case) for case in cases if case.totals)
    axes = axis_names(cases)
    on_gpu = any(graph_device_time(case) for case in cases)
    gathers = any(gather_rate(case) for case in cases)
    unit, scale = _step_unit(cases)
    return Table(
        "Sweep",
        [
            *numbers(*(name.replace("_", " ") for name in axes.values())),
            *numbers(f"step, median {unit}", *(["decode, GPU µs"] if on_gpu else []), "tokens/s"),
            *numbers("prepare, median µs", *(["gather GB/s"] if gathers else []), "allocated"),
            *numbers("peak blocks", minor=True),
            *names("state"),
        ],
        [
            (
                *(setting_text(case.axis.get(path, ABSENT)) for path in axes),
                measured(latency_median(case, "step"), scale),
                *([measured(graph_device_time(case), 1e-3)] if on_gpu else []),
                _tokens_per_second(case),
                measured(latency_median(case, "prepare"), 1e-3),
                *([measured(gather_rate(case))] if gathers else []),
                _allocated(case),
                _peak_blocks(case),
                Mark(_MARKS[case.status]),
            )
            for case in cases
        ],
        note="; ".join([*backends, "tokens in and out"]),
        keys=len(axes),
    )


def _step_unit(cases: Sequence[Case]) -> tuple[str, float]:
    """The unit of the column of steps, and how many a nanosecond is."""
    steps = [step.value for case in cases if (step := latency_median(case, "step"))]
    return ("ms", 1e-6) if max(steps, default=0) >= _LONG_STEP_NS else ("µs", 1e-3)


def _tokens_per_second(case: Case) -> str:
    rate = tokens_per_second(case.totals) if case.totals else None
    return ABSENT if rate is None else f"{rate:,.0f}"


def _allocated(case: Case) -> str:
    size = allocated_bytes(case)
    return ABSENT if size is None else format_bytes(size)


def _peak_blocks(case: Case) -> str:
    return f"{case.totals.peak_blocks:,}" if case.totals else ABSENT


_STATUSES: tuple[Literal["complete", "skipped", "incomplete", "failed"], ...] = (
    "complete",
    "skipped",
    "incomplete",
    "failed",
)
_LEGEND = Text(
    "± or -/+ is the 95 % interval within this run, ? below six samples; 1 GB/s = 10^9 B/s", "dim"
)


def report_record(record: RunRecord, *, quiet: bool = False) -> Iterator[Part]:
    """Facts, tables, findings and answer of a record, or with ``quiet`` only its problems."""
    if quiet:
        replayed = any(case.replay for case in record.cases)
        findings = list_replay_findings(record) if replayed else _findings(record)
        return (finding for finding in findings if finding.is_problem)
    return chain(_report_cases(record), report_answer(record))


def _report_cases(record: RunRecord) -> Iterator[Part]:
    if any(case.replay for case in record.cases):
        return report_replay(record)
    if record.launches:
        return _report_launches(record)
    if len(record.cases) == 1:
        return _report_case(record, record.cases[0])
    return _report_sweep(record)


def _report_case(record: RunRecord, case: Case) -> Iterator[Part]:
    layers = layers_text([case])
    yield from judge_status(case)
    yield header(record)
    if case.cache:
        yield cache_facts(case.cache)
    if case.cache and case.cache.pools:
        yield ""
        yield cache_table(case.cache).noted(layers)
    for table in _step_tables(record, case):
        yield ""
        yield table.noted(layers)
    if case.latencies:
        yield ""
        yield latencies_table(case.latencies).noted(layers)
        yield _LEGEND
    if case.totals:
        yield ""
        yield totals_facts(case.totals, case.cache)
    if case.memory and case.memory.at_ns:
        yield ""
        yield held_table(case.memory).noted(layers)
    if case.profile:
        yield ""
        yield from report_profile(case.profile, next(iter(yardsticks(case)), None), layers=layers)
    if telemetry := telemetry_table(case):
        yield ""
        yield telemetry
    yield ""
    yield from judge_results(case)
    yield from judge_telemetry(case)


def _step_tables(record: RunRecord, case: Case) -> Iterator[Table]:
    """Operations, and the decode steps that they are part of."""
    if case.operations:
        yield operations_table(case)
    gpu = record.environment.gpu
    yield from filter(None, (decode_table(case), step_table([case]), roofs_table(case, gpu)))


def _report_launches(record: RunRecord) -> Iterator[Part]:
    """One table of launches for every point of the sweep; what all launches share once."""
    yield from _judge_launches(record)
    yield header(record)
    for axis in dict.fromkeys(map(axis_text, record.cases)):
        cases = [case for case in record.cases if axis_text(case) == axis]
        cache = next((case.cache for case in cases if case.cache), None)
        if cache:
            yield ""
            yield cache_facts(cache)
        yield ""
        table = launches_table([m for c in cases for m in measured_in(c)], axis or "Medians")
        yield table.noted(layers_text(cases))
    yield ""
    yield processes_table(record.launches)
    yield ""
    yield from (finding for finding in _findings(record) if finding.is_problem)
    yield from _sum_checks(record)


def _report_sweep(record: RunRecord) -> Iterator[Part]:
    yield from _judge_sweep(record)
    yield header(record)
    if record.cases:
        yield ""
        yield sweep_table(record.cases).noted(layers_text(record.cases))
        yield _LEGEND
        if steps := step_table(record.cases):
            yield ""
            yield steps.noted(layers_text(record.cases))
        yield ""
        yield from (finding for finding in _findings(record) if finding.is_problem)
        yield from _sum_checks(record)


def _judge_sweep(record: RunRecord) -> list[Finding]:
    """How many cases ran to their end; empty if all did."""
    if record.status == "complete":
        return []
    count = Counter(case.status for case in record.cases)
    level: Literal["warning", "bad"] = "bad" if count["failed"] else "warning"
    counts = ", ".join(f"{count[s]} {s}" for s in _STATUSES if count[s])
    sentence = f"of {len(record.cases)} cases {counts}" if counts else "no case ran"
    return [Finding(level, f"{record.status}: {sentence}")]


def _judge_launches(record: RunRecord) -> list[Finding]:
    """How many launches ran to their end; empty if all did."""
    if record.status == "complete":
        return []
    count = Counter(launch.status for launch in record.launches)
    level: Literal["warning", "bad"] = "bad" if record.status == "failed" else "warning"
    counts = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in count.items())
    return [Finding(level, f"{record.status}: of {len(record.launches)} launches {counts}")]


def _sum_checks(record: RunRecord) -> list[Finding]:
    checks = sum(case.verification.checks for case in record.cases)
    if not checks or any(case.verification.failures for case in record.cases):
        return []
    return [Finding("good", f"{checks:,} outputs equal the reference in all cases together")]


def _findings(record: RunRecord) -> Iterator[Finding]:
    """Every case's findings; each begins with what distinguishes its case."""
    for case in record.cases:
        words = [f"launch {case.launch}"] if record.launches else []
        words += [axis_text(case)] if case.axis else []
        prefix = f"{', '.join(words)}: " if len(record.cases) > 1 else ""
        findings = [*judge_status(case), *judge_results(case), *judge_telemetry(case)]
        for finding in findings:
            yield replace(finding, sentence=prefix + finding.sentence)
