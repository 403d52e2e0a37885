"""What a page can show beside the run records, as its makers hand it over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsv4kv.measure.verdict import Judgement
from dsv4kv.view.page.charts.figure import Chart
from dsv4kv.view.table import Finding, Table


@dataclass(frozen=True)
class ComparedRow:
    """What was compared (an operation, a latency, a case of a sweep) and what came of it."""

    name: str
    judgement: Judgement


@dataclass(frozen=True)
class Compared:
    """Two sides, row by row, as a page shows them.

    Attributes:
        before: Name of the side that is held against.
        after: Name of the side that is judged.
        floor: Changes below it are none: 0.01 is 1 %.
        rows: In the order to be told.
        overall: Geometric mean over the rows; None without a row.
        verdict: The conclusion, as a sentence.
        cautions: What to know before believing it: sides that differ, launches that were lost.
        table: The numbers, as on a terminal.
        explanation: How to read them.
    """

    before: str
    after: str
    floor: float
    rows: Sequence[ComparedRow]
    overall: Judgement | None
    verdict: Finding
    cautions: Sequence[Finding]
    table: Table
    explanation: str


@dataclass(frozen=True)
class Track:
    """A quantity read at moments, in seconds since the start; None where there was no answer."""

    name: str
    unit: str
    seconds: Sequence[float]
    values: Sequence[float | None]


@dataclass(frozen=True)
class Span:
    """A stretch of time, in seconds since the start, and why the clocks were held down then."""

    start_s: float
    end_s: float
    reason: str


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
        beside: Whether the tables are narrow enough to stand beside the charts.
    """

    key: str
    heading: str
    note: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    beside: bool = False
