"""A comparison as a page shows it."""

from collections.abc import Iterator
from pathlib import Path

from dsv4kv.compare.comparison import Comparison, Row
from dsv4kv.compare.view import LEVELS, comparison_table, list_warnings
from dsv4kv.compare.words import conclude, explain
from dsv4kv.measure.verdict import Verdict
from dsv4kv.report.findings import Finding
from dsv4kv.report.page.inputs import Compared, ComparedRow
from dsv4kv.report.page.write import write_page


def write_comparison(comparison: Comparison, verdict: Verdict, target: Path) -> None:
    """Write a page: what changed, and a record of each side.

    Raises:
        ConfigError: The file cannot be written.
    """
    records = [side.records[0] for side in (comparison.before, comparison.after)]
    write_page(records, target, for_page(comparison, verdict))


def for_page(comparison: Comparison, verdict: Verdict) -> Compared:
    """The comparison in the page's terms."""
    return Compared(
        before=comparison.before.name,
        after=comparison.after.name,
        floor=comparison.floor.value,
        rows=[ComparedRow(_name(row), row.judgement) for row in comparison.rows],
        overall=comparison.overall,
        verdict=Finding(LEVELS[verdict], conclude(comparison, verdict)),
        cautions=[*list_warnings(comparison), *_tell_omissions(comparison)],
        table=comparison_table(comparison),
        explanation=explain(comparison),
    )


def _tell_omissions(comparison: Comparison) -> Iterator[Finding]:
    """Sides of several records: a page with all of them would say everything many times."""
    for side in (comparison.before, comparison.after):
        if (count := len(side.records)) > 1:
            told = f"{side.name}: all {count} records are compared, the first is shown below"
            yield Finding("note", told)


def _name(row: Row) -> str:
    return ", ".join(filter(None, (row.quantity.axis, str(row.quantity))))
