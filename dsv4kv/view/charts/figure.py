"""Figures in the page's look, drawn by matplotlib, which is imported when the first is made.

The page's colours: one accent in shades, one colour per verdict, light and dark. Charts are drawn
in the light colours, each of which stands for its role and no other, so that a page can put the
role in its place and follow the reader's choice of light or dark.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from math import ceil, floor, log2, log10
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from dsv4kv.units import format_bytes, format_duration

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text


LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#15191e",
    "muted": "#59636e",
    "rule": "#d8dee4",
    "wash": "#f4f6f8",
    "accent": "#0a62a8",
    "tint": "#cfe2f1",
    "shade-1": "#5396c6",
    "shade-2": "#3f86bd",
    "shade-3": "#236fad",
    "shade-4": "#0b528c",
    "shade-5": "#073b66",
    "shade-6": "#04233e",
    "good": "#1a7340",
    "warning": "#8f5700",
    "bad": "#b42318",
    "heat": "#fbe3c4",
}
DARK: Final = {
    "paper": "#101418",
    "ink": "#e8ecf0",
    "muted": "#9aa5b1",
    "rule": "#2b333c",
    "wash": "#181e24",
    "accent": "#6cb6f0",
    "tint": "#1d3c56",
    "shade-1": "#3d76a3",
    "shade-2": "#4d8fc3",
    "shade-3": "#64a8dd",
    "shade-4": "#86c0ee",
    "shade-5": "#afd7f6",
    "shade-6": "#dbeefc",
    "good": "#63c58b",
    "warning": "#e5b25d",
    "bad": "#ff8f84",
    "heat": "#4a3513",
}
SHADES: Final = tuple(name for name in LIGHT if name.startswith("shade-"))
"""From the first of an ordered set of series to the last."""


def css_variables(colours: dict[str, str]) -> str:
    """``--paper:#ffffff;…``: declarations for a rule of a style sheet."""
    return "".join(f"--{role}:{colour};" for role, colour in colours.items())


WIDTH: Final = 400
"""Units across, a CSS pixel each on a phone held upright; the text is sized for that."""
SMALL: Final = 10.3
_TEXT = 11.0
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and read aloud
    "svg.hashsalt": "dsv4kv",  # the same chart is the same bytes
    "font.size": _TEXT,
    "font.family": "sans-serif",
    "font.sans-serif": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.labelsize": _TEXT,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.8,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "text.color": LIGHT["ink"],
    "text.parse_math": False,  # a $ is one
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": "none",
    "savefig.facecolor": LIGHT["paper"],
    "hatch.linewidth": 0.6,
}


@dataclass(frozen=True)
class Chart:
    """A figure and what it says to whoever cannot see it.

    Attributes:
        key: Short name, unique on a page and usable in a file name.
        title: What is shown, with its unit.
        description: What can be read from it, in a sentence or two.
        figure: The drawing.
        note: What to know before reading it, for a chart that is a file of its own.
        tips: Texts shown over an artist, or over its parts in their order, by the artist's gid.
    """

    key: str
    title: str
    description: str
    figure: "Figure"
    note: str = ""
    tips: dict[str, Sequence[str]] = field(default_factory=dict)

    def tip(self, artist: "Artist", *texts: str) -> None:
        """Show a text while the pointer rests on this artist, or several on one part each."""
        name = f"tip{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = texts


def new_figure(
    height: float,
    rows: int = 1,
    *,
    share_x: bool = False,
    heights: Sequence[float] | None = None,
    width: float = WIDTH,
) -> tuple["Figure", list["Axes"]]:
    """An empty figure of ``width`` by ``height`` units and its axes from top to bottom."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        grid = figure.subplots(
            rows, 1, sharex=share_x, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
    return figure, list(grid[:, 0])


def draw_svg(figure: "Figure") -> str:
    """The figure as SVG, in light colours."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    target = BytesIO()
    with _drawing(figure):  # the canvas itself: savefig draws everything twice
        canvas = FigureCanvasSVG(figure)
        canvas.print_svg(target)  # type: ignore[no-untyped-call]
    return target.getvalue().decode()


def draw_png(figure: "Figure") -> bytes:
    """The figure as PNG, in light colours on white, three pixels to a unit."""
    target = BytesIO()
    with _drawing(figure):
        figure.savefig(target, format="png", dpi=3 * 72)
    return target.getvalue()


@contextmanager
def _drawing(figure: "Figure") -> Iterator[None]:
    """The style; names are shown as they are, in a browser's font if not in matplotlib's."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def short_duration(nanoseconds: float) -> str:
    """A duration for a tick: ``20 µs`` rather than ``20.0 µs``."""
    return _shorten_number(format_duration(nanoseconds)) if nanoseconds else "0"


def short_bytes(count: float) -> str:
    """A size for a tick: ``4 MiB`` rather than ``4.00 MiB``."""
    return _shorten_number(format_bytes(count)) if count else "0"


def _shorten_number(text: str) -> str:
    number, unit = text.split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


_MOST_TICKS = 5
_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def write(
    axes: "Axes", x: float, y: float, text: str, role: str = "ink", **changes: Any
) -> "Text":
    """Write a text at a place of the axes' data, small, in a role's colour."""
    look: dict[str, Any] = {"color": LIGHT[role], "fontsize": SMALL, "va": "center"}
    return axes.text(x, y, text, **look | changes)


def round_ticks(low: float, high: float) -> list[float]:
    """At most five round numbers of a logarithmic axis; those at its ends if none is round."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]
        if len(found) <= _MOST_TICKS:
            return found if len(found) > 1 else [low, high]
    return found[:: ceil(len(found) / _MOST_TICKS)]


def byte_ticks(low: float, high: float) -> list[float]:
    """At most five powers of two for an axis of bytes, and 0 where it begins there."""
    if low <= 0:
        step = 2.0 ** ceil(log2(max(high, 1) / _MOST_TICKS))
        return [step * n for n in range(int(high / step) + 1)]
    first, last = ceil(log2(low)), floor(log2(high))
    stride = max(1, ceil((last - first + 1) / _MOST_TICKS))
    return [2.0**power for power in range(first, last + 1, stride)]


def scale_log(
    axes: "Axes",
    which: str,
    low: float,
    high: float,
    ticks: Callable[[float, float], list[float]] = round_ticks,
) -> None:
    """Make an axis (``x`` or ``y``) logarithmic between two values, with a few round ticks."""
    from matplotlib.ticker import FixedLocator, NullLocator

    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(low, high)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(ticks(low, high)))
    axis.set_minor_locator(NullLocator())


def spread_shades(count: int) -> list[str]:
    """Colours of an ordered set: as far apart as the shades allow, the accent for one alone."""
    if count == 1:
        return [LIGHT["accent"]]
    step = (len(SHADES) - 1) / (min(count, len(SHADES)) - 1)
    return [LIGHT[SHADES[round(step * (number % len(SHADES)))]] for number in range(count)]


def show_linear_durations(axis: "Axis", low: float, high: float) -> None:
    """Label a linear axis, in ns, with as many digits as distinguish its ticks."""
    unit, size = next((u for u in _UNITS if high >= u[1]), _UNITS[-1])
    step = (high - low) / size / _MOST_TICKS
    decimals = max(0, ceil(-log10(step)) + 1) if step > 0 else 0  # a tick may be at 1.025

    def show(value: float, _: object) -> str:
        number = f"{value / size:,.{decimals}f}"
        return f"{number.rstrip('0').rstrip('.') if decimals else number} {unit}"

    axis.set_major_formatter(show)


def plain_number(value: float) -> str:
    """A tick's number: ``0.05``, ``20``, ``4,000``, ``1.5 M``."""
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value / 1e6:,.6g} M"


def fit(name: str, letters: int) -> str:
    """A name in so many letters: its end, which says more than its beginning."""
    return name if len(name) <= letters else f"…{name[1 - letters :]}"


_SVG: Final = "http://www.w3.org/2000/svg"
_HREF: Final = "{http://www.w3.org/1999/xlink}href"
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_ROLES = {colour: role for role, colour in LIGHT.items()}
_COLOUR = re.compile("|".join(_ROLES))
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # which XML has no place for
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_REFERENCE = re.compile(r"#([\w-]+)")
_FAMILY = re.compile(r"; font-family: [^;]*")
_NO_TURN = re.compile(r"rotate\(-0 [^)]*\)")
_LEAST_WIDTH: Final = 600  # pixels of a file: it is opened alone, on a large screen
_HEADING_LOOK: Final = {"font-size": "12.5", "font-weight": "600", "fill": LIGHT["ink"]}
_NOTE_LOOK: Final = {"font-size": "10.3", "fill": LIGHT["muted"]}


def inline_svg(chart: Chart) -> str:
    """The chart as an element of a page: no ids but its own, colours by their roles.

    The page has a rule for ``var(--accent)`` and its like, light and dark.
    """
    root = _tidy(chart)
    return _COLOUR.sub(lambda found: f"var(--{_ROLES[found[0]]})", _serialise(root))


def standalone_svg(chart: Chart) -> str:
    """The chart as a file: on white, with its title and its note above it, in lines."""
    root = _tidy(chart)
    _, top, width, height = map(float, root.attrib["viewBox"].split())
    lines = [
        (line, height, look)
        for text, height, letter, look in (
            (chart.title, 18, 7.1, _HEADING_LOOK),
            (chart.note, 15, 5.7, _NOTE_LOOK),
        )
        for line in wrap(text, int((width - 16) / letter))
    ]
    head = 10 + sum(height for _, height, _ in lines)
    root.set("viewBox", f"0 {top - head:g} {width:g} {height + head:g}")
    scale = max(1.0, _LEAST_WIDTH / width)
    root.set("width", f"{width * scale:g}")
    root.set("height", f"{(height + head) * scale:g}")
    root.set("font-family", _FONT)
    paper = {"y": f"{-head}", "width": "100%", "height": "100%", "fill": LIGHT["paper"]}
    root.insert(2, ET.Element(f"{{{_SVG}}}rect", paper))
    y = float(-head)
    for number, (text, height_of_line, look) in enumerate(lines, 3):
        y += height_of_line
        root.insert(number, ET.Element(f"{{{_SVG}}}text", {"x": "8", "y": f"{y:g}"} | look))
        root[number].text = text
    return _serialise(root) + "\n"


def _tidy(chart: Chart) -> ET.Element:
    """Matplotlib's document without what a page has no use for."""
    root = ET.fromstring(_CONTROLS.sub("?", draw_svg(chart.figure)))
    _drop_metadata(root)
    _name(root, chart)
    references = set(_REFERENCE.findall(ET.tostring(root, encoding="unicode")))
    for element in list(root.iter()):
        if element.get("id") in chart.tips:
            _add_tips(element, chart.tips[element.attrib["id"]])
        _shorten_element(element, f"{chart.key}-", references)
    return root


def _drop_metadata(root: ET.Element) -> None:
    for name in ("metadata", "defs"):  # the first defs is a style for the whole document
        if (found := root.find(f"{{{_SVG}}}{name}")) is not None:
            root.remove(found)
    figure = root.find(f"{{{_SVG}}}g")
    if figure is not None:
        figure.remove(figure[0])  # the paper


def _name(root: ET.Element, chart: Chart) -> None:
    for name in ("width", "height", "version"):
        del root.attrib[name]
    names = {"title": chart.title, "desc": chart.description}
    for place, (tag, text) in enumerate(names.items()):
        element = ET.Element(f"{{{_SVG}}}{tag}", {"id": tag})
        element.text = text
        root.insert(place, element)
    root.set("role", "img")
    root.set("aria-labelledby", "#title #desc")


def _add_tips(element: ET.Element, texts: Sequence[str]) -> None:
    parts = [element] if len(texts) == 1 else list(element.iter(f"{{{_SVG}}}path"))
    for part, text in zip(parts, texts, strict=True):
        title = ET.Element(f"{{{_SVG}}}title")
        title.text = text
        part.insert(0, title)


def _shorten_element(element: ET.Element, prefix: str, references: set[str]) -> None:
    """Two decimals are enough, and an id nobody refers to is none."""
    element.tail = None
    if element.text and not element.text.strip():
        element.text = None
    kept = element.attrib.pop("id", None)
    for name, value in list(element.attrib.items()):
        del element.attrib[name]
        shorter = _NUMBER.sub(lambda found: f"{round(float(found[0]), 2):g}", value)
        shorter = _FAMILY.sub("", " ".join(shorter.split()))
        if name == "aria-labelledby":
            shorter = _REFERENCE.sub(rf"{prefix}\1", shorter)
        elif name in (_HREF, "clip-path"):
            shorter = _REFERENCE.sub(rf"#{prefix}\1", shorter)
        if not _NO_TURN.fullmatch(shorter):
            element.set("href" if name == _HREF else name, shorter)
    if kept in references:
        element.set("id", prefix + kept)


def _serialise(root: ET.Element) -> str:
    ET.register_namespace("", _SVG)
    return _CONTROLS.sub("?", ET.tostring(root, encoding="unicode"))
