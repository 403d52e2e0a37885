"""A sweep as a chart: which axis lies below, which numbers stand above it."""

from collections.abc import Callable, Sequence
from html import escape

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.chart import MOST_SERIES, Chart, Series, draw_svg
from dsv4kv.sizing.sweep import COLUMNS, Row, to_values

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
_CACHE, _GPUS = "cache of one request, GiB", "GPUs needed"
_NOTE = "dsv4kv budget; memory is binary: 1 GiB = 2^30 B"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:14px system-ui,sans-serif;margin:2em;max-width:72em}}
table{{border-collapse:collapse;display:block;overflow-x:auto}}
th,td{{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}}
</style></head><body>
{svg}
<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table>
</body></html>
"""


def draw_sweep(rows: Sequence[Row]) -> str:
    """The sweep as SVG: the first axis of numbers (the context before others) lies below."""
    label, value_of = _choose_values(rows)
    axes = list(rows[0].point)
    below = next((name for name in sorted(axes, key=_rank) if name in _NUMBERS), axes[0])
    others = [name for name in axes if name != below]
    numbers = below in _NUMBERS
    series: dict[str, list[tuple[float | str, float]]] = {}
    for row in rows:
        name = _name(row, others)
        x = _number(row, below) if numbers else row.point[below]
        series.setdefault(name, []).append((x, value_of(row)))
    if len(series) > MOST_SERIES:
        raise ConfigError(
            f"a chart of {len(series)} lines cannot be read (at most {MOST_SERIES}): sweep fewer "
            "values, or write them with --csv."
        )
    return draw_svg(
        Chart(
            title=f"{label[0].upper()}{label[1:]}, by {_join(axes)}",
            note=_NOTE,
            x_label=_NUMBERS.get(below, below),
            y_label=label,
            series=tuple(
                Series(f"{name}{_on_gpus(rows, name, others, label)}", tuple(points))
                for name, points in series.items()
            ),
            x_names={_number(row, below): row.point[below] for row in rows} if numbers else {},
        )
    )


def _name(row: Row, axes: Sequence[str]) -> str:
    return ", ".join(row.point[axis] for axis in axes) or row.inputs.model


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _on_gpus(rows: Sequence[Row], name: str, axes: Sequence[str], label: str) -> str:
    """How many GPUs the points of a series have: they may have been chosen one by one."""
    found = [row.found for row in rows if row.found and _name(row, axes) == name]
    gpus = [each.scenario.layout.gpus for each in found]
    if not gpus or label in (_CACHE, _GPUS):
        return ""
    low, high = min(gpus), max(gpus)
    return f" ({low} GPUs)" if low == high else f" ({low} to {high} GPUs)"


def draw_page(rows: Sequence[Row]) -> str:
    """The chart and the sweep's numbers as one HTML page."""
    names = [*rows[0].point, *(name for name in COLUMNS if name not in rows[0].point), "problem"]
    lines = [to_values(row) for row in rows]
    body = "\n".join(
        "<tr>" + "".join(f"<td>{_cell(line[name])}</td>" for name in names) + "</tr>"
        for line in lines
    )
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    return _PAGE.format(title="dsv4kv budget", svg=draw_sweep(rows), head=head, body=body)


def _choose_values(rows: Sequence[Row]) -> tuple[str, Callable[[Row], float]]:
    """Requests that fit, or for given ones the GPUs, the longest context or the cache."""
    if any(row.found is None for row in rows):
        return _CACHE, lambda row: row.cached_bytes / _GIB
    first = rows[0].inputs
    if first.concurrency is not None and first.gpus is None:
        return _GPUS, lambda row: row.found.scenario.layout.gpus if row.found else 0
    if first.concurrency is not None and first.context is not None:
        return "cache on one GPU, GiB", lambda row: row.found.use.cache / _GIB if row.found else 0
    if first.concurrency is not None:
        return "longest context, tokens", lambda row: row.found.max_context if row.found else 0
    return "requests at once", lambda row: row.found.max_concurrency if row.found else 0


def _rank(axis: str) -> int:
    return 0 if axis == "context" else 1


def _number(row: Row, axis: str) -> float:
    value = getattr(row.inputs, axis.replace("-", "_"))
    return float(value) / (_GIB if axis in _SIZES else 1)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int | float) else escape(str(value))
