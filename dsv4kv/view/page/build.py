"""A page before it is HTML: its headline, an article per record, and sections of a sweep."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from dsv4kv.measure.statistics import Estimate, estimate_rate
from dsv4kv.measure.verdict import Verdict
from dsv4kv.runs.quantities import axis_names, axis_text, list_measured, setting_text
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.view.case import backend_note, launches_table, processes_table
from dsv4kv.view.cells import measured, show_setting
from dsv4kv.view.charts.bars import Compared, ratios_chart, to_percent
from dsv4kv.view.charts.figure import (
    Chart,
    byte_ticks,
    plain_number,
    short_bytes,
    short_duration,
)
from dsv4kv.view.charts.latency import Samples, distribution_chart
from dsv4kv.view.charts.sweep import Metric, Point, sweep_chart
from dsv4kv.view.facts import header, layers_text
from dsv4kv.view.headline import (
    KeyNumber,
    answer,
    judge_launches,
    judge_record,
    key_numbers,
    name_run,
    unchanged,
)
from dsv4kv.view.outcomes import (
    OUTCOMES,
    STEP,
    Group,
    Outcome,
    differ,
    ends_of,
    group_launches,
    middle_launches,
)
from dsv4kv.view.page.sections import (
    Section,
    case_sections,
    check_section,
    config_text,
    step_sections,
)
from dsv4kv.view.record import sweep_table
from dsv4kv.view.replay import sweep_table as replay_table
from dsv4kv.view.table import ABSENT, Finding, Row, Table, names, numbers

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


def comparison_section(compared: Compared) -> Section:
    """Changes with their intervals, and the medians they are of."""
    return Section(
        "comparison",
        "What changed",
        compared.explanation,
        charts=[ratios_chart(compared)] if compared.rows else [],
        tables={"comparison-table": compared.table},
    )


def compared_numbers(compared: Compared) -> list[KeyNumber]:
    """How much time changed on the mean, and how many rows were judged how."""
    count = Counter(row.judgement.verdict for row in compared.rows)
    rows = f"of {len(compared.rows):,} rows"
    note = f"beyond the floor of {compared.floor * 100:.3g} %"
    counts = [
        KeyNumber("Slower", f"{count[Verdict.SLOWER]:,}", "", rows, note),
        KeyNumber("Faster", f"{count[Verdict.FASTER]:,}", "", rows, note),
    ]
    if compared.overall is None:
        return counts
    change, ends = to_percent(compared.overall.ratio), compared.overall.interval
    interval = (
        " to ".join(f"{to_percent(end):+.1f}" for end in ends) + " %" if ends else "not known"
    )
    mean = f"geometric mean; interval {interval}"
    return [KeyNumber("Change of time", f"{change:+.1f}", "", "%", mean), *counts]


_BESIDE = ("run", "repeat")  # facts that the page shows elsewhere
_OF_MACHINE = ("machine", "checks")  # sections without a number of the model


@dataclass(frozen=True)
class Article:
    """One record on a page; ``prefix`` keeps its ids apart from those of the others.

    ``answer`` is what a sweep found; a single case says it in its numbers.
    """

    prefix: str
    name: str
    record: RunRecord
    verdict: Finding
    answer: list[str]
    cautions: list[str]
    numbers: list[KeyNumber]
    facts: dict[str, str]
    sections: list[Section]
    started: str
    config: str


@dataclass(frozen=True)
class Page:
    """Everything that the template shows.

    Verdict, cautions, numbers and opening are those of a page that says something of its own:
    of a comparison, or of a sweep without records.
    """

    title: str
    verdict: Finding | None
    cautions: list[Finding]
    numbers: list[KeyNumber]
    opening: Section | None
    articles: list[Article]

    def charts(self) -> Iterator[Chart]:
        """Every chart, in the order of the page."""
        if self.opening:
            yield from self.opening.charts
        for article in self.articles:
            for section in article.sections:
                yield from section.charts


def build_page(records: Sequence[RunRecord], compared: Compared | None = None) -> Page:
    """Draw and tabulate everything that the records have.

    With a comparison they are two: one of either side.
    """
    only = len(records) == 1
    sides = [compared.before, compared.after] if compared else [""] * len(records)
    articles = [
        _article(record, "" if only else f"run{n}-", side)
        for n, (record, side) in enumerate(zip(records, sides, strict=True), 1)
    ]
    title = name_run(records[0]) if only else f"{len(records)} runs"
    return Page(
        title=f"From {compared.before} to {compared.after}" if compared else title,
        verdict=compared.verdict if compared else None,
        cautions=list(compared.cautions) if compared else [],
        numbers=compared_numbers(compared) if compared else [],
        opening=comparison_section(compared) if compared else None,
        articles=articles,
    )


def _article(record: RunRecord, prefix: str, side: str) -> Article:
    groups = group_launches(record.cases)
    facts = header(record).rows
    return Article(
        prefix=prefix,
        name=f"{side}: {name_run(record)}" if side else name_run(record),
        record=record,
        verdict=judge_record(record),
        answer=answer(record)[:1] if len(groups) > 1 else [],
        cautions=_cautions(record, groups),
        numbers=key_numbers(groups),
        facts={name: fact for name, fact in facts.items() if name not in _BESIDE},
        sections=[
            _prefixed(_of_layers(each, layers_text(record.cases)), prefix)
            for each in _sections(record, groups)
        ],
        started=f"{datetime.fromisoformat(record.started_utc).astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        config=config_text(record),
    )


def _sections(record: RunRecord, groups: Sequence[Sequence[Case]]) -> Iterator[Section]:
    if len(groups) == 1:
        yield from launch_section(record)
        yield from case_sections(middle_launches(groups)[0], record.environment.gpu)
    elif groups:
        yield from sweep_sections(groups)
    checks = check_section([(_case_name(record, case), case) for case in record.cases])
    yield replace(checks, findings=[*judge_launches(record.launches), *checks.findings])


def _cautions(record: RunRecord, groups: Sequence[Sequence[Case]]) -> list[str]:
    notes = list(dict.fromkeys(backend_note(case) for case in record.cases if case.totals))
    if any(case.replay for case in record.cases):
        return ["times are those of a model, not of this machine"]
    if len(record.cases) > len(groups):
        notes.append("± or -/+ is the 95 % interval over launches, ? below six")
        notes.append(
            "details are those of the launch whose step is in the middle, intervals are within it"
        )
    else:
        notes.append("± or -/+ is the 95 % interval within the run")
    return [*notes, "1 GB/s = 10⁹ B/s"]


def _case_name(record: RunRecord, case: Case) -> str:
    launch = f"launch {case.launch}" if record.launches else ""
    return ", ".join(filter(None, (axis_text(case), launch))) if len(record.cases) > 1 else ""


def _of_layers(section: Section, layers: str) -> Section:
    """The section with the layers next to its numbers, where they are of a part of a model."""
    if not layers or section.key in _OF_MACHINE:
        return section
    return replace(
        section,
        charts=[replace(each, title=f"{each.title}, {layers}") for each in section.charts],
        tables={key: table.noted(layers) for key, table in section.tables.items()},
    )


def _prefixed(section: Section, prefix: str) -> Section:
    return replace(
        section,
        key=prefix + section.key,
        charts=[replace(chart, key=prefix + chart.key) for chart in section.charts],
        tables={prefix + key: table for key, table in section.tables.items()},
    )
