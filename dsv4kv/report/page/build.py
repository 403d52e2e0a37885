"""A page before it is HTML: its headline, and an article per record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dsv4kv.report.axes import axis_text
from dsv4kv.report.facts import header
from dsv4kv.report.findings import Finding
from dsv4kv.report.page.comparison import compared_numbers, comparison_section
from dsv4kv.report.page.figure import Chart
from dsv4kv.report.page.headline import judge_launches, judge_record, key_numbers, name_run
from dsv4kv.report.page.html_table import convert_facts
from dsv4kv.report.page.inputs import Compared
from dsv4kv.report.page.key_number import KeyNumber
from dsv4kv.report.page.launches import group_launches, launch_section, middle_launches
from dsv4kv.report.page.section import Section
from dsv4kv.report.page.sections import case_sections, check_section, config_text
from dsv4kv.report.page.sweep import sweep_sections
from dsv4kv.report.record import Case, RunRecord
from dsv4kv.report.tables import backend_note

_BESIDE = ("run", "repeat")  # facts that the page tells elsewhere


@dataclass(frozen=True)
class Article:
    """One record on a page; ``prefix`` keeps its ids apart from those of the others."""

    prefix: str
    name: str
    record: RunRecord
    verdict: Finding
    cautions: list[str]
    numbers: list[KeyNumber]
    facts: dict[str, str]
    sections: list[Section]
    started: str
    config: str


@dataclass(frozen=True)
class Page:
    """Everything that the template shows.

    Verdict, cautions, numbers and section of a comparison are there only if there is one.
    """

    title: str
    verdict: Finding | None
    cautions: list[Finding]
    numbers: list[KeyNumber]
    comparison: Section | None
    articles: list[Article]

    def charts(self) -> Iterator[Chart]:
        """Every chart, in the order of the page."""
        if self.comparison:
            yield from self.comparison.charts
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
        comparison=comparison_section(compared) if compared else None,
        articles=articles,
    )


def _article(record: RunRecord, prefix: str, side: str) -> Article:
    groups = group_launches(record.cases)
    facts = convert_facts(header(record))
    return Article(
        prefix=prefix,
        name=f"{side}: {name_run(record)}" if side else name_run(record),
        record=record,
        verdict=judge_record(record),
        cautions=_cautions(record, groups),
        numbers=key_numbers(groups),
        facts={name: fact for name, fact in facts.items() if name not in _BESIDE},
        sections=[_prefixed(each, prefix) for each in _sections(record, groups)],
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
        notes.append("± is half of the 95 % interval over launches, ? below six")
        notes.append(
            "details are those of the launch whose step is in the middle, and their ± is within it"
        )
    else:
        notes.append("± is half of the 95 % interval within the run")
    return [*notes, "1 GB/s = 10⁹ B/s"]


def _case_name(record: RunRecord, case: Case) -> str:
    launch = f"launch {case.launch}" if record.launches else ""
    return ", ".join(filter(None, (axis_text(case), launch))) if len(record.cases) > 1 else ""


def _prefixed(section: Section, prefix: str) -> Section:
    return replace(
        section,
        key=prefix + section.key,
        charts=[replace(chart, key=prefix + chart.key) for chart in section.charts],
        tables=[replace(table, key=prefix + table.key) for table in section.tables],
    )
