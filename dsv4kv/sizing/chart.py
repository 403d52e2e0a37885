"""A small chart as SVG: lines over a logarithmic axis, or groups of bars over names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

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
