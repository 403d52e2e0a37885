"""The section of a profile."""

from dsv4kv.report.findings import Finding
from dsv4kv.report.kernels import kernels_table, operations_table
from dsv4kv.report.page.charts.kernels import kernels_chart
from dsv4kv.report.page.html_table import convert_table
from dsv4kv.report.page.section import Section
from dsv4kv.report.profile_record import KernelTable
from dsv4kv.report.yardstick import Yardstick

_MOST_ROWS = 40


def kernel_section(table: KernelTable, yardstick: Yardstick | None) -> Section:
    """The longest kernels, operations of the toolkit, and what to know about the profile."""
    tables = [convert_table(kernels_table(table, _MOST_ROWS, yardstick), "kernel-table")]
    if table.operations:
        operations = operations_table(table.operations, yardstick)
        tables.append(convert_table(operations, "profiled-table"))
    version = f" {table.tool_version}" if table.tool_version else ""
    return Section(
        "kernels",
        "Which kernels ran",
        f"As {table.tool}{version} saw them.",
        charts=[kernels_chart(table)] if table.kernels else [],
        tables=tables,
        findings=[
            *(Finding("warning", sentence) for sentence in table.warnings),
            *(Finding("note", sentence) for sentence in table.notes),
        ],
    )
