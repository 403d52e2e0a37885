"""How fast operations moved bytes, held against plain memory traffic on the same machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.report.page.charts.marks import write
from dsv4kv.report.page.charts.operations import (
    OpRate,
    Roof,
    describe_rate,
    describe_rates,
    name_roofs,
    scale_rates,
)
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import Chart, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW, _HEAD = 19, 62


def rates_chart(operations: Sequence[OpRate], roofs: Sequence[Roof]) -> Chart:
    """A row per operation: its rate and interval, with the roofs as lines."""
    names = {each.number: each.name for each in operations}
    figure, (axes,) = new_figure(_HEAD + _ROW * len(names))
    chart = Chart(
        "rates", "Rate of each operation, GB/s", describe_rates(operations, roofs), figure
    )
    for each in operations:
        spread = each.rate.half_width or 0
        mark = axes.errorbar(
            each.rate.value,
            each.number,
            xerr=min(spread, each.rate.value * 0.99),
            fmt="o",
            markersize=5.5,
            color=LIGHT["accent"],
            markerfacecolor=LIGHT["paper"] if each.in_cache else LIGHT["accent"],
            elinewidth=1.4,
        )
        chart.tip(mark.lines[0], describe_rate(each))
    axes.set_yticks(list(names), [f"{name}  {number}" for number, name in names.items()])
    axes.tick_params(axis="y", colors=LIGHT["ink"])
    axes.set_ylim(len(names) + 0.7, 0.3)
    scale_rates(axes, "x", operations, roofs)
    axes.grid(axis="both")
    _draw_roofs(axes, roofs)
    axes.set_xlabel("GB/s of useful bytes")
    return chart


def _draw_roofs(axes: "Axes", roofs: Sequence[Roof]) -> None:
    """Roofs as upright lines, named above the rows in the order they stand in."""
    for roof in roofs:
        axes.axvline(roof.gbps, color=LIGHT["ink"], linewidth=0.9)
    if roofs:
        place = axes.transAxes
        write(axes, 1, 1.0, name_roofs(roofs), ha="right", va="bottom", transform=place)
