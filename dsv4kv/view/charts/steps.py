"""A stacked bar for the bytes of a step and one for its time, by kind of work."""

from collections.abc import Mapping, Sequence

from dsv4kv.view.charts.figure import LIGHT, SMALL, Chart, new_figure, spread_shades, write

_ROW, _HEAD, _LEAST_SHOWN = 21, 56, 7.0

Stacked = Mapping[str, float]
"""Per cent of a whole by kind."""


def stacks_chart(rows: Sequence[tuple[str, Stacked]], title: str) -> Chart:
    """A bar for each row, all of one length; kinds have the same shade in all of them."""
    kinds = list(dict.fromkeys(kind for _, parts in rows for kind in parts))
    figure, (axes,) = new_figure(_HEAD + _ROW * len(rows))
    for kind, shade in zip(kinds, spread_shades(len(kinds)), strict=True):
        before = kinds[: kinds.index(kind)]
        starts = [sum(parts.get(each, 0) for each in before) for _, parts in rows]
        widths = [parts.get(kind, 0) for _, parts in rows]
        axes.barh(range(len(rows)), widths, left=starts, height=0.62, color=shade, label=kind)
        for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
            if width >= _LEAST_SHOWN:
                middle = start + width / 2
                write(axes, middle, row, f"{width:.0f} %", "paper", ha="center")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.tick_params(axis="y", colors=LIGHT["ink"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, labelcolor=LIGHT["ink"], fontsize=SMALL
    )
    return Chart("step-shares", title, _describe(rows), figure)


def _describe(rows: Sequence[tuple[str, Stacked]]) -> str:
    shares = (
        f"{name}: {', '.join(f'{kind} {size:.1f} %' for kind, size in parts.items())}"
        for name, parts in rows
    )
    return f"{'; '.join(shares)}."
