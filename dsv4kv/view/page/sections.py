"""The sections of a page: what a case has charts and tables for, and how to read them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from dsv4kv.runs.profile import Profile
from dsv4kv.runs.quantities import Yardstick, clock_factor, datasheet_gbps, yardsticks
from dsv4kv.runs.replay import ReplayResult
from dsv4kv.runs.schema import Case, GpuFacts, RunRecord
from dsv4kv.runs.telemetry import (
    GpuChecks,
    GpuSamples,
    GpuState,
    HostSamples,
    MemorySeries,
    Telemetry,
)
from dsv4kv.runs.windows import REASONS, VIOLATIONS
from dsv4kv.units import format_bytes
from dsv4kv.view.case import cache_table, decode_table, latencies_table, operations_table
from dsv4kv.view.charts.bars import kernels_chart, pools_chart, shares_chart, stacks_chart
from dsv4kv.view.charts.figure import Chart
from dsv4kv.view.charts.latency import Samples, distribution_chart, order_chart
from dsv4kv.view.charts.rates import Roof, operation_rates, rates_chart, roofline_chart
from dsv4kv.view.charts.time import (
    Span,
    Track,
    held_chart,
    held_sizes,
    spans_sentence,
    telemetry_chart,
    time_chart,
)
from dsv4kv.view.facts import cache_facts, totals_facts
from dsv4kv.view.fleet import fleet_facts, replicas_table
from dsv4kv.view.headline import judge_case
from dsv4kv.view.profile import (
    classes_table,
    describe_profile,
    judge_profile,
    kernels_table,
    profiled_operations_table,
    shares,
    steps_table,
    time_of,
)
from dsv4kv.view.replay import (
    below_table,
    constants_table,
    memory_table,
    replay_facts,
    reuse_table,
    tiers_table,
    times_table,
)
from dsv4kv.view.step import roofs_table, step_stacks, step_table
from dsv4kv.view.table import Finding, Table, numbers
from dsv4kv.view.telemetry import (
    held_table,
    pool_sizes,
    stride_text,
    telemetry_table,
)

_NS: Final = 1e-9
# column: name, unit, factor
_SHOWN: Final = {
    "sm_clock_mhz": ("SM clock", "MHz", 1.0),
    "memory_clock_mhz": ("memory clock", "MHz", 1.0),
    "power_mw": ("power", "W", 1e-3),
    "temperature_c": ("temperature", "°C", 1.0),
    "dram_percent": ("DRAM bandwidth", "% of the full rate", 1.0),
    "memory_used_bytes": ("memory in use", "GiB", 2.0**-30),
    "cpu_mhz": ("CPU clock", "MHz", 1.0),
    "load_1min": ("load, 1 min", "processes", 1.0),
}


def telemetry_tracks(telemetry: Telemetry) -> list[Track]:
    """What was answered at two moments at least, the GPU's before the host's."""
    tables = (telemetry.gpu_samples, telemetry.gpu_checks, telemetry.host_samples)
    found = [track for table in tables if table for track in _tracks(table)]
    return [track for track in found if sum(value is not None for value in track.values) > 1]


def reports_limits(samples: GpuSamples) -> bool:
    """Whether there was an answer at all to what held clocks down."""
    return any(getattr(samples, column) is not None for column in ("reasons", *VIOLATIONS))


def throttled_spans(samples: GpuSamples) -> list[Span]:
    """Stretches in which a limit was reported, each to the poll that no longer reported it.

    Where a poll reported none and a counter grew until the next, that stretch is the counter's.
    """
    reasons = samples.reasons or [None] * len(samples.at_ns)
    reported = [
        span
        for bit, name in REASONS.items()
        for span in _stretches(samples.at_ns, reasons, bit, name)
    ]
    return [*reported, *_counted(samples, reasons)]


def machine_facts(telemetry: Telemetry) -> dict[str, str]:
    """What did not change, and what the process took."""
    found = {
        "GPU": ", ".join(_describe_gpu(telemetry.gpu)) if telemetry.gpu else "",
        "PCIe": _describe_link(telemetry.gpu_checks) if telemetry.gpu_checks else "",
        "process": f"{format_bytes(telemetry.memory_peak_bytes)} resident at most",
    }
    return {name: fact for name, fact in found.items() if fact}


def _describe_gpu(gpu: GpuState) -> Iterator[str]:
    if gpu.power_limit_mw is not None:
        yield f"power limit {gpu.power_limit_mw / 1e3:,.0f} W"
    if gpu.most_sm_clock_mhz is not None:
        yield f"SM clock up to {gpu.most_sm_clock_mhz:,} MHz"
    for name, state in (("ECC", gpu.ecc), ("MIG", gpu.mig), ("persistence", gpu.persistence)):
        if state is not None:
            yield f"{name} {'on' if state else 'off'}"


def _describe_link(checks: GpuChecks) -> str:
    generations, widths = checks.pcie_generation or [], checks.pcie_width or []
    links = dict.fromkeys(
        f"generation {generation}, {width} lanes"
        for generation, width in zip(generations, widths, strict=False)
        if generation is not None and width is not None
    )
    return " or ".join(links)


def _tracks(table: GpuSamples | GpuChecks | HostSamples) -> list[Track]:
    seconds = [at * _NS for at in table.at_ns]
    found = []
    for column, (name, unit, factor) in _SHOWN.items():
        if values := getattr(table, column, None):
            scaled = [None if value is None else value * factor for value in values]
            found.append(Track(name, unit, seconds, scaled))
    return found


def _counted(samples: GpuSamples, reasons: Sequence[int | None]) -> Iterator[Span]:
    for column, name in VIOLATIONS.items():
        counter: Sequence[int | None] = getattr(samples, column) or []
        polls = zip(samples.at_ns, counter, reasons, strict=False)
        for (at, before, limits), (then, after, _) in pairwise(polls):
            grew = before is not None and after is not None and after > before
            if grew and not (limits or 0) & sum(REASONS):
                yield Span(at * _NS, then * _NS, name)


def _stretches(
    at_ns: Sequence[int], reasons: Sequence[int | None], bit: int, name: str
) -> list[Span]:
    spans: list[Span] = []
    start: int | None = None
    for at, reason in zip(at_ns, reasons, strict=False):
        held = bool((reason or 0) & bit)
        if held and start is None:
            start = at
        elif not held and start is not None:
            spans.append(Span(start * _NS, at * _NS, name))
            start = None
    if start is not None:
        spans.append(Span(start * _NS, at_ns[-1] * _NS, name))
    return spans


@dataclass(frozen=True)
class Section:
    """A part of the page; what is empty is not shown.

    Attributes:
        key: Its id on the page.
        heading: What it answers.
        note: How to read it.
        facts: Facts by label.
        charts: Drawings.
        tables: The numbers, by id on the page.
        findings: Sentences.
        side_by_side: Whether the tables are narrow enough to be placed next to the charts.
    """

    key: str
    heading: str
    note: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    side_by_side: bool = False


_MOST_ROWS = 40


def profile_sections(profile: Profile, yardstick: Yardstick | None) -> Iterator[Section]:
    """Where the time of a step went, then the longest kernels and the toolkit's operations."""
    table = profile.table
    if table is None:
        return
    found = [*describe_profile(profile, table), *judge_profile(table)]
    where = {"step-table": steps_table(table, table.steps)} if table.steps else {}
    if table.kernels:
        where["class-table"] = classes_table(table)
    yield Section(
        "profile",
        "Where the time of a step went" if table.steps else "Where the time went",
        charts=[shares_chart(spent, time_of(table))] if (spent := shares(table)) else [],
        tables=where,
        findings=found,
        side_by_side=True,
    )
    if table.kernels:
        tables = {"kernel-table": kernels_table(table, _MOST_ROWS, yardstick)}
        if table.operations:
            tables["profiled-table"] = profiled_operations_table(table.operations, yardstick)
        yield Section("kernels", "Which kernels ran", charts=[kernels_chart(table)], tables=tables)


_READ_POOLS = "Bars are allocated bytes of all layers, dark ticks what the plan said."
_READ_HELD = (
    "Bytes in blocks and slots that were held, and the share of each that was; what is left to "
    "100 % was free. Times leave checks out."
)
_MOST_MOMENTS = 12
_NS_TO_S = 1e-9


def memory_sections(case: Case) -> Iterator[Section]:
    """Nothing for a case without a cache, or one that ended before its first step."""
    if case.cache:
        yield _pools_section(case)
    if case.memory and case.memory.at_ns:
        yield _held_section(case.memory)


def moments_table(seconds: Sequence[float], columns: dict[str, list[str]]) -> Table:
    """A chart's numbers at some of its moments, equally far apart; the last is among them."""
    count = len(seconds)
    step = max(1, -(-(count - 1) // (_MOST_MOMENTS - 1)))
    chosen = sorted({count - 1, *range(0, count, step)})
    return Table(
        "Some moments",
        numbers("s", *columns),
        [(f"{seconds[n]:,.3f}", *(cells[n] for cells in columns.values())) for n in chosen],
        note="" if len(chosen) == count else f"{len(chosen)} of {count:,} points",
    )


def _pools_section(case: Case) -> Section:
    assert case.cache
    facts = dict(cache_facts(case.cache).rows)
    if case.totals:
        facts |= totals_facts(case.totals, case.cache).rows
    charts = [pools_chart(case.cache)] if case.cache.pools else []
    tables = {"cache-table": cache_table(case.cache)} if case.cache.pools else {}
    note = _READ_POOLS if case.cache.pools else ""
    return Section("memory", "Where the memory is", note, facts, charts, tables, side_by_side=True)


def _held_section(series: MemorySeries) -> Section:
    seconds = [at * _NS_TO_S for at in series.at_ns]
    columns = {each.name: [f"{count:,}" for count in each.held] for each in series.units}
    for name, sizes in pool_sizes(series).items():
        header = f"{name}, bytes" if name in columns else name
        columns[header] = [format_bytes(size) for size in sizes]
    return Section(
        "held",
        "What was held over time",
        f"{_READ_HELD} There is {stride_text(series)}.",
        charts=[held_chart(series)],
        tables={
            "held-table": held_table(series),
            "moments-table": moments_table(seconds, columns),
        },
        side_by_side=True,
    )


_READ_TIMES = (
    "Times are those of the model of a step below, not of the machine that replayed. The line is "
    "the median in its 95 % interval over requests. No request is left out."
)
_READ_REPLAY_HELD = (
    "Which blocks were found, evicted and held is exact; when that was, the model of a step says."
)


_READ_TIERS = (
    "What was kept in host memory, on disk or on another machine, and what of it came back. "
    "Useful are entries and keys of context, without padding, windows and states."
)


def replay_sections(case: Case, result: ReplayResult) -> Iterator[Section]:
    """Everything that one replay has to show, in the order of the page."""
    facts = dict(cache_facts(case.cache).rows) if case.cache else {}
    if case.totals:
        facts |= replay_facts(result, case.totals).rows
    tables = {"reuse-table": reuse_table(result.reuse)}
    yield Section("reuse", "What was reused", "", facts, tables=tables)
    rows = [Samples(each.name, each.samples_ns) for each in case.latencies if each.samples_ns]
    if rows:
        yield Section(
            "latency",
            "How long it took",
            _READ_TIMES,
            charts=[distribution_chart(rows)],
            tables={"times-table": times_table(case.latencies)},
            side_by_side=True,
        )
    if result.fleet and case.totals:
        tables = {
            "replicas-table": replicas_table(
                result.fleet, case.totals, clock_factor(case, "queueing")
            )
        }
        facts = dict(fleet_facts(result.fleet, case.totals, clock_factor(case, "latency")).rows)
        yield Section("fleet", "What the servers did", "", facts, tables=tables)
    if result.tiers:
        tables = {
            "below-table": below_table(result.tiers, result.reuse.prompt_tokens),
            "tiers-table": tiers_table(result.tiers),
        }
        yield Section("tiers", "What came back from below", _READ_TIERS, tables=tables)
    if result.series.at_ns:
        yield _replay_held_section(result)
    tables = {"constants-table": constants_table(result)}
    yield Section("model", "What the times rest on", tables=tables)


def _replay_held_section(result: ReplayResult) -> Section:
    series = result.series
    columns = {
        name: [f"{count:,}" for count in getattr(series, name)]
        for name in ("running", "waiting", "paused")
    }
    for name, sizes in held_sizes(result).items():
        columns[name] = [format_bytes(size) for size in sizes]
    seconds = [at * _NS_TO_S for at in series.at_ns]
    tables = {
        "memory-table": memory_table(result),
        "moments-table": moments_table(seconds, columns),
    }
    chart = time_chart(result)
    return Section(
        "held",
        "What was held over time",
        _READ_REPLAY_HELD,
        {},
        [chart],
        tables,
        side_by_side=True,
    )


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
    """Everything that one case has to show, in the order of the page; ``gpu`` is the one used."""
    if case.replay:
        yield from replay_sections(case, case.replay)
        return
    if case.profile:
        yield from profile_sections(case.profile, next(iter(yardsticks(case)), None))
    if any(latency.samples_ns for latency in case.latencies):
        yield _latency_section(case)
    if case.operations:
        yield _operation_section(case, _roofs(case, gpu))
        yield from step_sections([case], gpu)
    yield from memory_sections(case)
    yield from _machine_sections(case)


_READ_STEP = (
    "Bytes are useful ones by the byte model, of all requests and layers held; times are those of "
    "the operations, and of the host's bookkeeping."
)


def step_sections(cases: Sequence[Case], gpu: GpuFacts | None) -> Iterator[Section]:
    """Where the bytes and the time of a decode step go; nothing where no case knows."""
    stacks, table = step_stacks(cases), step_table(cases)
    if table is None:
        return
    tables = {"step-shares-table": table}
    if len(cases) == 1 and (roofs := roofs_table(cases[0], gpu)):
        tables["roofs-table"] = roofs
    title = "Bytes and time of a decode step by kind of work"
    heading = "Where a decode step goes"
    charts = [stacks_chart(stacks, title)] if len(stacks) <= _MOST_STACKS else []
    yield Section("step-shares", heading, _READ_STEP, charts=charts, tables=tables)


_MOST_STACKS = 40


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
        tables=({"decode-table": decode} if decode else {})
        | {"latency-table": latencies_table(case.latencies)},
        side_by_side=True,
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
        tables={"operation-table": operations_table(case)},
    )


def _machine_sections(case: Case) -> Iterator[Section]:
    tracks = telemetry_tracks(case.telemetry) if case.telemetry else []
    if not case.telemetry or not tracks:
        return
    samples = case.telemetry.gpu_samples
    spans = throttled_spans(samples) if samples else []
    note = spans_sentence(spans) if samples and reports_limits(samples) else ""
    table = telemetry_table(case)
    yield Section(
        "machine",
        "What the machine did",
        note,
        machine_facts(case.telemetry),
        charts=[telemetry_chart(tracks, spans, note)],
        tables={"machine-table": table} if table else {},
    )
