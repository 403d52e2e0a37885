"""Plots by matplotlib: bars, dots with intervals, lines, stacks.

Every function returns a ``Chart``, which is drawn when a page or a file is written. Values are in
base units; ``unit`` formats them: ``ns`` as a duration, ``B`` as a binary size, anything else
follows the number.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO
from math import ceil, log2, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsv4kv.units import format_bytes, format_duration
from dsv4kv.view.table import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS: Final = ("#0a62a8", "#d55e00", "#009e73", "#cc79a7", "#8f5700", "#56b4e9", "#59636e")
"""Of series in their order: distinguishable for colour-blind readers, too."""
TONES: Final = {"good": "#1a7340", "warning": "#8f5700", "bad": "#b42318", "dim": "#59636e"}
INK, MUTED, RULE = "#15191e", "#59636e", "#d8dee4"
MAX_LINES: Final = 2 * len(COLOURS)
"""Lines that can be distinguished: every colour, solid and dashed."""

_WIDTH, _ROW = 400, 21  # units of 1/72 inch, nearly a CSS pixel on a phone held upright
_SMALL = 10.3  # there, at least 9 pixels
_LOG_SPAN = 20.0  # from here on, a linear axis hides the small values
_LONGEST = 28  # letters of a name
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # XML has no place for them
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and read aloud
    "font.family": "sans-serif",
    "font.sans-serif": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 10.8,
    "text.parse_math": False,  # a $ is one
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": _SMALL,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}


def to_svg(chart: Chart, salt: str = "") -> str:
    """An SVG element for a page; with another ``salt`` its ids are others."""
    _load()
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    target = BytesIO()
    with _drawn(chart, salt or "dsv4kv") as figure:
        FigureCanvasSVG(figure).print_svg(target)  # type: ignore[no-untyped-call]
    text = _clean(target.getvalue())
    text = text[text.index("<svg") :]
    text = re.sub(r' xmlns:xlink="[^"]*"', "", text).replace("xlink:href", "href")
    return re.sub(r' id="[a-zA-Z]+[._]?[0-9_.a-z]*_\d+"', "", text)  # once on a page each


def to_svg_file(chart: Chart) -> str:
    """An SVG document, on white and with its title."""
    target = BytesIO()
    with _drawn(chart) as figure:
        figure.axes[0].set_title(_fit(chart.title, 72), fontsize=11, fontweight="bold", loc="left")
        figure.set_facecolor("white")
        figure.savefig(target, format="svg")
    return _clean(target.getvalue())


def _clean(svg: bytes) -> str:
    text = _CONTROLS.sub("?", svg.decode())
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)


def _load() -> None:
    """Import matplotlib without the ``matplotlibrc`` of the current folder, which is anybody's."""
    if "matplotlib" in sys.modules:
        return
    here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    try:
        os.chdir(Path(__file__).parent)
        import_module("matplotlib")
    finally:
        os.fchdir(here)
        os.close(here)


@contextmanager
def _drawn(chart: Chart, salt: str = "dsv4kv") -> Iterator["Figure"]:
    """The chart in its style; names in a browser's font where matplotlib's has no glyphs."""
    _load()
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context(), warnings.catch_warnings():
        rcdefaults()
        rcParams.update({**_STYLE, "svg.hashsalt": salt})
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield chart.draw()


def _axes(height: float, names: int = 0) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    size = _WIDTH / 72, (height + 18 * -(-names // 2)) / 72
    figure = Figure(figsize=size, dpi=72, layout="constrained")
    return figure, figure.subplots()


_LEGEND: Final[dict[str, Any]] = {"loc": "outside lower left", "ncols": 2}


class Bar(NamedTuple):
    """A row of ``bars``: text at its right, ends of its interval, a tone other than the colour."""

    name: str
    value: float
    text: str = ""
    ends: tuple[float, float] | None = None
    tone: str = ""


def bars(
    title: str,
    rows: Sequence[Bar],
    *,
    unit: str = "",
    dots: bool = False,
    lines: Mapping[str, float] | None = None,
    band: tuple[float, float] | None = None,
) -> Chart:
    """A row for each name: a bar from 0, or with ``dots`` a dot with its interval.

    All rows are compared with the values of ``lines``, by name; those in the ``band`` are alike.
    """
    compared = lines or {}

    def draw() -> "Figure":
        figure, axes = _axes(46 + _ROW * len(rows), len(compared))
        beside = axes.get_yaxis_transform()
        for n, row in enumerate(rows):
            colour = TONES.get(row.tone, COLOURS[0])
            if dots:
                axes.plot(row.value, n, "o", color=colour, markersize=5.5)
            else:
                axes.barh(n, row.value, height=0.62, color=colour)
            if row.ends:
                axes.hlines(n, *row.ends, color=colour if dots else INK, linewidth=1.4)
            look: dict[str, Any] = {"color": colour if row.tone else INK, "fontsize": _SMALL}
            axes.text(1.01, n, row.text, transform=beside, va="center", **look)
        for n, (name, value) in enumerate(compared.items()):
            label, dashes = f"{name} {show(value, unit)}", ("-", "--", ":", "-.")[n % 4]
            axes.axvline(value, color=INK, linewidth=0.9, linestyle=dashes, label=label)
        if compared:
            figure.legend(**_LEGEND)
        if band:
            axes.axvspan(*band, color=RULE, lw=0, zorder=0)
        values = [row.value for row in rows] + list(compared.values())
        if dots and _are_far_apart(values):
            _scale_log(axes, "x", values, unit)
        else:
            axes.locator_params(axis="x", nbins=4)
            _format(axes.xaxis, unit)
        axes.set_yticks(range(len(rows)), [_fit(row.name, _LONGEST) for row in rows])
        axes.tick_params(axis="y", colors=INK, length=0)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        return figure

    words = ", ".join(f"{row.name} {row.text or show(row.value, unit)}" for row in rows)
    return Chart(title, f"{words}.", draw)


class Line(NamedTuple):
    """A series of ``lines``: values (None where there is none) over rising numbers, and ends."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def lines(
    title: str,
    series: Sequence[Line],
    *,
    x: str,
    unit: str = "",
    x_names: Mapping[float, str] | None = None,
    stacked: bool = False,
) -> Chart:
    """Marks over one axis of numbers, joined by at most ``MAX_LINES``, or areas upon each other.

    ``x_names`` are names of the values on the axis, such as ``128K``.
    """
    known = [y for line in series for y in line.ys if y is not None]

    def draw() -> "Figure":
        named = stacked or len(series) > 1
        figure, axes = _axes(230, named * len(series))
        if stacked:
            held = [[float(y or 0) for y in line.ys] for line in series]
            areas = axes.stackplot(series[0].xs, *held, colors=COLOURS, step="post", linewidth=0)
            for area, line in zip(areas, series, strict=True):
                area.set_label(line.name)
        for n, line in enumerate(() if stacked else series):
            _draw_line(axes, line, COLOURS[n % len(COLOURS)], n)
        _scale_values(axes, known, unit, may_be_log=not stacked and unit != "%")
        xs = sorted({float(each) for line in series for each in line.xs})
        if x_names:
            _name_places(axes, xs, x_names)
        elif len(xs) > 1 and stacked:
            axes.set_xlim(xs[0], xs[-1])
        elif _are_far_apart(xs):
            _scale_log(axes, "x", xs, "")
        axes.set_xlabel(x)
        axes.grid(axis="y")
        if named and any(line.name for line in series):
            figure.legend(**_LEGEND)
        return figure

    ends = f" between {show(min(known), unit)} and {show(max(known), unit)}" if known else ""
    names = ", ".join(line.name for line in series if line.name)
    return Chart(title, f"{names or title}{ends} over {x}.", draw)


def _draw_line(axes: "Axes", line: Line, colour: str, n: int) -> None:
    ys = [nan if y is None else float(y) for y in line.ys]
    form = "osD^vPX"[n % 7] + ("-" if n < len(COLOURS) else "--")
    axes.plot(line.xs, ys, form, label=line.name, color=colour)
    if line.low is not None and line.high is not None:
        axes.vlines(line.xs, line.low, line.high, color=colour, linewidth=1.2)


def show(value: float, unit: str) -> str:
    """A value for a tick or a sentence: ``20 µs``, ``4 MiB``, ``1.5 M``, ``12 %``."""
    if unit in ("ns", "B") and value:
        number, name = (format_duration if unit == "ns" else format_bytes)(value).split(" ")
        return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {name}"
    number = f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if abs(value) >= 1e6:
        number = f"{value / 1e6:,.4g} M"
    return f"{number} {unit}" if unit not in ("", "ns", "B") else number


def _format(axis: "Axis", unit: str) -> None:
    from matplotlib.ticker import MultipleLocator

    if unit == "B":
        low, high = axis.get_view_interval()
        axis.set_major_locator(MultipleLocator(2 ** ceil(log2(max(high - low, 5) / 5))))
    axis.set_major_formatter(lambda value, _: show(round(value, 9), unit))


def _are_far_apart(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) > _LOG_SPAN


def _scale_values(axes: "Axes", known: Sequence[float], unit: str, *, may_be_log: bool) -> None:
    if may_be_log and _are_far_apart(known):
        _scale_log(axes, "y", known, unit)
        return
    axes.locator_params(axis="y", nbins=5)
    _format(axes.yaxis, unit)
    if known and min(known) >= 0 and max(known) > 2 * min(known):
        axes.set_ylim(0)


def _scale_log(axes: "Axes", which: str, values: Sequence[float], unit: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(min(values) / 1.6, max(values) * 2.2)
    axis = axes.xaxis if which == "x" else axes.yaxis
    many = 4 if which == "x" and unit else 6  # with units there is room for few
    axis.set_major_locator(LogLocator(2 if unit == "B" else 10, numticks=many))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda value, _: show(value, unit))


def _name_places(axes: "Axes", xs: Sequence[float], names: Mapping[float, str]) -> None:
    """Names where there is room for them; a logarithmic axis where the numbers are far apart."""
    if _are_far_apart(xs):
        axes.set_xscale("log", base=2)
        axes.set_xticks([], minor=True)
    stride = -(-sum(len(names[each]) + 3 for each in xs) // 60)
    axes.set_xticks(xs[::stride], [names[each] for each in xs[::stride]])


def _fit(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"…{name[1 - letters :]}"
