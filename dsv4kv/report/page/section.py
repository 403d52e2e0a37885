"""What every section of a page is made of."""

from dataclasses import dataclass, field

from dsv4kv.report.findings import Finding
from dsv4kv.report.page.figure import Chart
from dsv4kv.report.page.html_table import HtmlTable


@dataclass(frozen=True)
class Section:
    """A part of the page; what is empty is not shown.

    Attributes:
        key: Its id on the page.
        heading: What it answers.
        note: How to read it.
        facts: Facts by label.
        charts: Drawings.
        tables: The numbers.
        findings: Sentences.
        beside: Whether the tables are narrow enough to stand beside the charts.
    """

    key: str
    heading: str
    note: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    tables: list[HtmlTable] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    beside: bool = False
