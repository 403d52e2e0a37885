"""Bars under each other with their size beside them: what takes most, at a glance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4kv.report.page.charts.marks import write
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW, _HEAD = 21, 16


@dataclass(frozen=True)
class Bar:
    """A bar; ``planned`` sets a dark tick where it should end."""

    name: str
    size: float
    text: str
    planned: float | None = None


def draw_bars(bars: Sequence[Bar], room: float) -> "Figure":
    """At least one bar; ``room`` is what the texts need beside the longest, as a share of it."""
    figure, (axes,) = new_figure(_HEAD + _ROW * len(bars))
    rows = range(len(bars))
    longest = max(max(bar.size, bar.planned or 0) for bar in bars) or 1
    axes.barh(rows, [bar.size for bar in bars], height=0.62, color=LIGHT["accent"])
    for row, bar in enumerate(bars):
        if bar.planned is not None:
            axes.vlines(bar.planned, row - 0.42, row + 0.42, LIGHT["ink"], linewidth=1.6)
        write(axes, max(bar.size, bar.planned or 0) + longest * 0.02, row, bar.text)
    axes.set_yticks(rows, [bar.name for bar in bars])
    axes.tick_params(axis="y", colors=LIGHT["ink"])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, longest * (1 + room))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return figure
