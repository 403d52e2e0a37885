"""A small chart as SVG: lines over a logarithmic axis, or groups of bars over names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.sweep import COLUMNS, Row, to_values

_WIDTH, _HEIGHT = 860, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 210, 64, 72
_RIGHT_EDGE, _FLOOR = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
# Okabe and Ito's colours, told apart by colour-blind readers too
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MOST_SERIES = 2 * len(_COLOURS)
"""So many lines can be told apart: every colour, whole and dashed."""
_LOG_SPAN = 20  # from here on a linear axis hides the small values


@dataclass(frozen=True)
class Series:
    """One line or one colour of bars.

    Attributes:
        name: For the legend.
        points: (x, y): x is a number, or a name on a chart of bars; y is 0 where nothing fits.
    """

    name: str
    points: tuple[tuple[float | str, float], ...]


@dataclass(frozen=True)
class Chart:
    """What a chart shows; axis labels carry their units."""

    title: str
    note: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_names: dict[float, str]


def draw_svg(chart: Chart) -> str:
    """The chart as one SVG document, readable on white."""
    points = [point for series in chart.series for point in series.points]
    named = any(isinstance(x, str) for x, _ in points)
    y_of, ticks = _vertical([y for _, y in points], may_be_log=not named)
    body = [*_frame(chart), *_grid(y_of, ticks)]
    body += _bars(chart, y_of) if named else _lines(chart, y_of)
    body += _legend(chart)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="system-ui, sans-serif" '
        'font-size="13" role="img">'
    )
    title = f"<title>{escape(chart.title)}</title>"
    paper = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    return "\n".join([head, title, paper, *body, "</svg>", ""])


def _text(x: float, y: float, text: str, **attributes: str) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{v}"' for name, v in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _frame(chart: Chart) -> list[str]:
    middle = (_TOP + _FLOOR) / 2
    turn = f"rotate(-90 22 {middle:.1f})"
    return [
        _text(_LEFT, 26, chart.title, font_size="17", font_weight="600"),
        _text(_LEFT, 46, chart.note, fill="#555555"),
        _text((_LEFT + _RIGHT_EDGE) / 2, _HEIGHT - 18, chart.x_label, text_anchor="middle"),
        _text(22, middle, chart.y_label, text_anchor="middle", transform=turn),
    ]


def _vertical(
    values: Sequence[float], *, may_be_log: bool
) -> tuple[Callable[[float], float], list[float]]:
    """Where a value lies, and the ticks: by decades where the values span much, else from 0."""
    positive = [value for value in values if value > 0] or [1.0]
    if may_be_log and max(positive) / min(positive) > _LOG_SPAN:
        low, high = floor(log10(min(positive))), ceil(log10(max(positive) * 1.001))
        ticks = [10.0**power for power in range(low, high + 1)]
        return lambda y: _place((log10(y) - low) / (high - low)) if y > 0 else _FLOOR, ticks
    step = _round_step(max(positive) / 5)
    ticks = [step * n for n in range(ceil(max(positive) / step) + 1)]
    return lambda y: _place(y / ticks[-1]), ticks


def _place(share: float) -> float:
    return _FLOOR - share * (_FLOOR - _TOP)


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least ``rough``."""
    power = 10.0 ** floor(log10(rough))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.999)


def _grid(y_of: Callable[[float], float], ticks: Sequence[float]) -> list[str]:
    parts = []
    for tick in ticks:
        colour = "#444444" if tick == ticks[0] else "#dddddd"
        parts.append(_line(_LEFT, y_of(tick), _RIGHT_EDGE, y_of(tick), colour))
        parts.append(_text(_LEFT - 8, y_of(tick) + 4, f"{tick:,.6g}", text_anchor="end"))
    return parts


def _lines(chart: Chart, y_of: Callable[[float], float]) -> list[str]:
    places = sorted({float(x) for series in chart.series for x, _ in series.points})
    x_of = _horizontal(places)
    parts = []
    for x in places:
        label = chart.x_names.get(x, f"{x:,.6g}")
        parts.append(_line(x_of(x), _FLOOR, x_of(x), _FLOOR + 5, "#444444"))
        parts.append(_text(x_of(x), _FLOOR + 20, label, text_anchor="middle"))
    for number, (series, colour) in enumerate(zip(chart.series, _colours(chart), strict=True)):
        dash = ' stroke-dasharray="6 4"' if number >= len(_COLOURS) else ""
        dots = [(x_of(float(x)), y_of(y), y) for x, y in sorted(series.points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in dots)
        stroke = f'stroke="{colour}" stroke-width="2"{dash}'
        parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')
        for x, y, value in dots:
            fill = colour if value > 0 else "#ffffff"
            tip = f"<title>{escape(series.name)}: {value:,.6g}</title>"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}">'
                f"{tip}</circle>"
            )
    return parts


def _horizontal(places: Sequence[float]) -> Callable[[float], float]:
    low, high = places[0], places[-1]
    width = _RIGHT_EDGE - _LEFT - 40
    if low > 0 and high / low >= 8:
        return lambda x: _LEFT + 20 + width * log10(x / low) / log10(high / low)
    return lambda x: _LEFT + 20 + width * (x - low) / ((high - low) or 1)


def _bars(chart: Chart, y_of: Callable[[float], float]) -> list[str]:
    names = list(dict.fromkeys(str(x) for series in chart.series for x, _ in series.points))
    slot = (_RIGHT_EDGE - _LEFT) / len(names)
    width = min(48.0, 0.8 * slot / len(chart.series))
    parts = []
    for number, name in enumerate(names):
        centre = _LEFT + slot * (number + 0.5)
        parts.append(_text(centre, _FLOOR + 20, name, text_anchor="middle"))
        start = centre - width * len(chart.series) / 2
        for series, colour in zip(chart.series, _colours(chart), strict=True):
            for x, y in series.points:
                if str(x) == name:
                    parts.append(_bar(start, y_of(y), width * 0.92, colour))
                    label = f"{y:,.4g}"
                    parts.append(_text(start + width / 2, y_of(y) - 5, label,
                                       text_anchor="middle", font_size="11"))  # fmt: skip
            start += width
    return parts


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_FLOOR - y:.1f}" '
        f'fill="{colour}"/>'
    )


def _legend(chart: Chart) -> list[str]:
    parts = []
    for number, (series, colour) in enumerate(zip(chart.series, _colours(chart), strict=True)):
        y = _TOP + 12 + 22 * number
        parts.append(_bar_key(_RIGHT_EDGE + 18, y, colour))
        parts.append(_text(_RIGHT_EDGE + 38, y + 1, series.name))
    return parts


def _bar_key(x: float, y: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="13" height="13" fill="{colour}"/>'


def _colours(chart: Chart) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(len(chart.series))]


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
