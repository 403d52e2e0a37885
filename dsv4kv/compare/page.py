"""A comparison as a page shows it."""

from dsv4kv.compare.comparison import Comparison, Row
from dsv4kv.compare.view import LEVELS, comparison_table, list_warnings
from dsv4kv.compare.words import conclude, explain
from dsv4kv.measure.verdict import Verdict
from dsv4kv.report.findings import Finding
from dsv4kv.report.page.inputs import Compared, ComparedRow


def for_page(comparison: Comparison, verdict: Verdict) -> Compared:
    """The comparison in the page's terms."""
    return Compared(
        before=comparison.before.name,
        after=comparison.after.name,
        floor=comparison.floor.value,
        rows=[ComparedRow(_name(row), row.judgement) for row in comparison.rows],
        overall=comparison.overall,
        verdict=Finding(LEVELS[verdict], conclude(comparison, verdict)),
        cautions=list(list_warnings(comparison)),
        table=comparison_table(comparison),
        explanation=explain(comparison),
    )


def _name(row: Row) -> str:
    return ", ".join(filter(None, (row.quantity.axis, str(row.quantity))))
