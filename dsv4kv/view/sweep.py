"""The table of a sweep: a row per case, swept settings left, key numbers right."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from dsv4kv.record.quantities import (
    allocated_bytes,
    axis_names,
    gather_rate,
    latency_median,
    setting_text,
)
from dsv4kv.record.schema import Case
from dsv4kv.units import format_bytes
from dsv4kv.view.case import backend_note, graph_device_time
from dsv4kv.view.cells import ABSENT, add_estimates, new_table
from dsv4kv.view.facts import tokens_per_second

_STATUS_MARKS = {
    "complete": ("✓", "green"),
    "incomplete": ("!", "yellow"),
    "skipped": ("–", "dim"),
    "failed": ("✗", "red"),
}


def sweep_table(cases: Sequence[Case]) -> Table:
    """One row per case. The gather rate is that of all gather operations together, cold ones."""
    backends = dict.fromkeys(backend_note(case) for case in cases if case.totals)
    table = new_table("Sweep", "; ".join([*backends, "tokens in and out"]))
    names = axis_names(cases)
    for name in names.values():
        table.add_column(name.replace("_", "\n"), justify="right", style="bold")
    steps, prepares = ([latency_median(c, name) for c in cases] for name in ("step", "prepare"))
    decodes = [graph_device_time(case) for case in cases]
    columns = [
        add_estimates(table, "step,\nmedian µs", steps, 1e-3),
        *([add_estimates(table, "decode,\nGPU µs", decodes, 1e-3)] if any(decodes) else []),
        _add_texts(table, "tokens/s", [_tokens_per_second(case) for case in cases]),
        add_estimates(table, "prepare,\nmedian µs", prepares, 1e-3),
        add_estimates(table, "gather\nGB/s", [gather_rate(case) for case in cases]),
        _add_texts(table, "allocated", [_allocated(case) for case in cases]),
        _add_texts(table, "peak\nblocks", [_peak_blocks(case) for case in cases]),
    ]
    table.add_column("")
    for case, *cells in zip(cases, *columns, strict=True):
        settings = [setting_text(case.axis.get(path, ABSENT)) for path in names]
        table.add_row(*settings, *cells, Text(*_STATUS_MARKS[case.status]))
    return table


def _add_texts(table: Table, header: str, cells: list[str]) -> list[str]:
    table.add_column(header, justify="right")
    return cells


def _tokens_per_second(case: Case) -> str:
    rate = tokens_per_second(case.totals) if case.totals else None
    return ABSENT if rate is None else f"{rate:,.0f}"


def _allocated(case: Case) -> str:
    size = allocated_bytes(case)
    return ABSENT if size is None else format_bytes(size)


def _peak_blocks(case: Case) -> str:
    return f"{case.totals.peak_blocks:,}" if case.totals else ABSENT
