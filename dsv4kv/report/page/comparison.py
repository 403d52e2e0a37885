"""The section of a comparison, and the numbers that stand above it."""

from collections import Counter

from dsv4kv.measure.verdict import Verdict
from dsv4kv.report.page.charts.comparison import ratios_chart, to_percent
from dsv4kv.report.page.html_table import convert_table
from dsv4kv.report.page.inputs import Compared
from dsv4kv.report.page.key_number import KeyNumber
from dsv4kv.report.page.section import Section


def comparison_section(compared: Compared) -> Section:
    """Changes with their intervals, and the medians they are of."""
    names = 2 if any(column.header == "at" for column in compared.table.columns) else 1
    return Section(
        "comparison",
        "What changed",
        compared.explanation,
        charts=[ratios_chart(compared)] if compared.rows else [],
        tables=[convert_table(compared.table, "comparison-table", names)],
    )


def compared_numbers(compared: Compared) -> list[KeyNumber]:
    """How much time changed on the mean, and how many rows were judged how."""
    count = Counter(row.judgement.verdict for row in compared.rows)
    told = f"of {len(compared.rows):,} rows"
    note = f"beyond the floor of {compared.floor * 100:.3g} %"
    counts = [
        KeyNumber("Slower", f"{count[Verdict.SLOWER]:,}", "", told, note),
        KeyNumber("Faster", f"{count[Verdict.FASTER]:,}", "", told, note),
    ]
    if compared.overall is None:
        return counts
    change, ends = to_percent(compared.overall.ratio), compared.overall.interval
    told = " to ".join(f"{to_percent(end):+.1f}" for end in ends) + " %" if ends else "not known"
    mean = f"geometric mean; interval {told}"
    return [KeyNumber("Change of time", f"{change:+.1f}", "", "%", mean), *counts]
