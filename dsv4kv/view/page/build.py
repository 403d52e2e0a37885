"""A page before it is HTML: its headline, and an article per record."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dsv4kv.measure.verdict import Verdict
from dsv4kv.record.quantities import axis_text
from dsv4kv.record.schema import Case, RunRecord
from dsv4kv.view.case import backend_note
from dsv4kv.view.charts.bars import Compared, ratios_chart, to_percent
from dsv4kv.view.charts.figure import Chart
from dsv4kv.view.facts import header, layers_text
from dsv4kv.view.headline import (
    KeyNumber,
    answer,
    judge_launches,
    judge_record,
    key_numbers,
    name_run,
)
from dsv4kv.view.outcomes import group_launches, middle_launches
from dsv4kv.view.page.sections import Section, case_sections, check_section, config_text
from dsv4kv.view.page.sweep import launch_section, sweep_sections
from dsv4kv.view.table import Finding


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
