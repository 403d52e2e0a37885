"""Figures in the page's look, drawn by matplotlib, which is imported when the first is made."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from dsv4kv.report.page.colours import LIGHT
from dsv4kv.units import format_bytes, format_duration

if TYPE_CHECKING:  # it takes half a second
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        tips: Text shown over a mark, by the mark's gid.
    """

    key: str
    title: str
    description: str
    figure: "Figure"
    tips: dict[str, str] = field(default_factory=dict)

    def tip(self, artist: "Artist", text: str) -> None:
        """Show a text while the pointer rests on this artist."""
        name = f"tip{len(self.tips)}"
        artist.set_gid(name)
        self.tips[name] = text


def new_figure(
    height: float, rows: int = 1, *, share_x: bool = False, heights: Sequence[float] | None = None
) -> tuple["Figure", list["Axes"]]:
    """An empty figure of ``WIDTH`` by ``height`` units and its axes from top to bottom."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout="constrained")
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
    """The style; names are told as they are, in a browser's font if not in matplotlib's."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def short_duration(nanoseconds: float) -> str:
    """A duration for a tick: ``20 µs`` rather than ``20.0 µs``."""
    return _shorten(format_duration(nanoseconds)) if nanoseconds else "0"


def short_bytes(count: float) -> str:
    """A size for a tick: ``4 MiB`` rather than ``4.00 MiB``."""
    return _shorten(format_bytes(count)) if count else "0"


def _shorten(text: str) -> str:
    number, unit = text.split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
