"""A sweep of ``dsv4kv budget`` as a chart, alone or on a page with its numbers."""

from collections.abc import Sequence

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.sweep import COLUMNS, Row, to_values
from dsv4kv.view.budget import CACHE, GPUS, choose_values, sweep_answer, sweep_table
from dsv4kv.view.charts.figure import Chart, plain_number, standalone_svg
from dsv4kv.view.charts.sweep import MOST_LINES, Metric, Point, sweep_chart
from dsv4kv.view.page.build import Page
from dsv4kv.view.page.sections import Section
from dsv4kv.view.page.write import render_page
from dsv4kv.view.table import ABSENT, Finding, Table, names, numbers

_NUMBERS = {
    "context": "context of a request, tokens (1K = 1,024)",
    "concurrency": "requests at once",
    "gpus": "GPUs",
    "hbm": "memory of a GPU, GiB",
    "weights": "weights, GiB",
    "reserve": "reserve, GiB",
    "memory-fraction": "share of the memory that may be used",
    "block-tokens": "tokens of a block",
    "in-flight-tokens": "tokens in flight (prompt chunk)",
    "draft-tokens": "draft tokens",
    "draft-layers": "draft layers",
    "tp": "tensor parallel ranks",
    "dp": "data parallel replicas",
    "pp": "pipeline stages",
    "ep": "expert parallel ranks",
}
_SIZES = ("hbm", "weights", "reserve")
_GIB = 2**30
_NOTE = "dsv4kv budget; memory is binary: 1 GiB = 2^30 B"


def draw_sweep(rows: Sequence[Row]) -> str:
    """The chart as an SVG document."""
    return standalone_svg(budget_chart(rows))


def draw_page(rows: Sequence[Row]) -> str:
    """The chart and the sweep's numbers as one HTML page."""
    chart = budget_chart(rows)
    tables = {"sweep-table": sweep_table(rows), "values-table": _values_table(rows)}
    section = Section(
        "sweep", f"By {_join(list(rows[0].point))}", f"{_NOTE}.", charts=[chart], tables=tables
    )
    return render_page(
        Page("dsv4kv budget", Finding("note", sweep_answer(rows)), [], [], section, [])
    )


def budget_chart(rows: Sequence[Row]) -> Chart:
    """The sweep over its first axis of numbers (the context before others), or over names.

    Raises:
        ConfigError: There would be more lines than can be distinguished.
    """
    label, value_of = choose_values(rows)
    axes = list(rows[0].point)
    across = next((name for name in sorted(axes, key=_rank) if name in _NUMBERS), axes[0])
    others = [name for name in axes if name != across]
    ordered = across in _NUMBERS
    lines = {name: f"{name}{_on_gpus(rows, name, others, label)}" for name in _lines(rows, others)}
    if len(lines) > MOST_LINES:
        raise ConfigError(
            f"a chart of {len(lines)} lines cannot be read (at most {MOST_LINES}): sweep fewer "
            "values, or write them with --csv."
        )
    metric = Metric(
        "budget",
        f"{label[0].upper()}{label[1:]}, by {_join(axes)}",
        [
            Point(
                _number(row, across) if ordered else row.point[across],
                lines[_name(row, others)],
                value_of(row),
            )
            for row in rows
        ],
        show=lambda value: plain_number(float(f"{value:.4g}")),
        names={_number(row, across): row.point[across] for row in rows} if ordered else {},
        note=_NOTE,
    )
    return sweep_chart(metric, _NUMBERS.get(across, across))


def _lines(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(_name(row, axes) for row in rows))


def _name(row: Row, axes: Sequence[str]) -> str:
    return ", ".join(row.point[axis] for axis in axes) or row.inputs.model


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _on_gpus(rows: Sequence[Row], name: str, axes: Sequence[str], label: str) -> str:
    """How many GPUs the points of a line have: they may have been chosen one by one."""
    found = [row.found for row in rows if row.found and _name(row, axes) == name]
    gpus = [each.scenario.layout.gpus for each in found]
    if not gpus or label in (CACHE, GPUS):
        return ""
    low, high = min(gpus), max(gpus)
    return f" ({low} GPUs)" if low == high else f" ({low} to {high} GPUs)"


def _rank(axis: str) -> int:
    return 0 if axis == "context" else 1


def _number(row: Row, axis: str) -> float:
    value = getattr(row.inputs, axis.replace("-", "_"))
    return float(value) / (_GIB if axis in _SIZES else 1)


def _values_table(rows: Sequence[Row]) -> Table:
    """Every number to its last digit, as ``--csv`` writes it."""
    axes = list(rows[0].point)
    columns = [name for name in (*COLUMNS, "problem") if name not in axes]
    return Table(
        "To the byte",
        [*names(*axes), *numbers(*(name.replace("_", " ") for name in columns))],
        [[_cell(values[name]) for name in (*axes, *columns)] for values in map(to_values, rows)],
        keys=len(axes),
    )


def _cell(value: object) -> str:
    if value is None:
        return ABSENT
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)
