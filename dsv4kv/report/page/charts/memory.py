"""Where the cache's bytes lie: pools as bars, and what was held over time."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from dsv4kv.report.memory_record import MemorySeries
from dsv4kv.report.memory_series import pool_sizes, share_percent
from dsv4kv.report.page.charts.bars import Bar, draw_bars
from dsv4kv.report.page.charts.marks import byte_ticks, spread_shades
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import SMALL, Chart, new_figure, short_bytes
from dsv4kv.report.record import CacheSummary
from dsv4kv.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 330
_DASHES = ("solid", "dashed", "dotted", "dashdot")


def pools_chart(cache: CacheSummary) -> Chart:
    """A bar per pool and layer type, the largest first; a dark tick where the plan said."""
    pools = sorted(cache.pools, key=lambda pool: -pool.allocated_bytes)
    bars = [
        Bar(
            name=pool.name if pool.layer_type == "all" else f"{pool.name} {pool.layer_type}",
            size=float(pool.allocated_bytes),
            text=format_bytes(pool.allocated_bytes),
            planned=float(pool.predicted_bytes),
        )
        for pool in pools
    ]
    total = format_bytes(sum(bar.size for bar in bars))
    told = f"{total} allocated: {', '.join(f'{bar.name} {bar.text}' for bar in bars)}."
    return Chart("pools", "Memory by pool, all layers", told, draw_bars(bars, room=0.24))


def held_chart(series: MemorySeries) -> Chart:
    """Bytes held over time, pools stacked in shades; below, shares of what there is."""
    figure, (bytes_axes, shares_axes) = new_figure(_HEIGHT, 2, share_x=True, heights=(3, 2))
    seconds = [at * 1e-9 for at in series.at_ns]
    sizes = pool_sizes(series)
    stack_sizes(bytes_axes, seconds, sizes)
    for each, dashes in zip(series.units, cycle(_DASHES)):
        shares = [share_percent(each, count) for count in each.held]
        shares_axes.step(seconds, shares, where="post", color=LIGHT["ink"], linewidth=1.1,
                         linestyle=dashes, label=f"{each.name}, %")  # fmt: skip
    shares_axes.set_ylim(0, 104)
    shares_axes.set_yticks([0, 50, 100], ["0", "50 %", "100 %"])
    shares_axes.grid(axis="y")
    if len(seconds) > 1:
        shares_axes.set_xlim(seconds[0], seconds[-1])
    shares_axes.set_xlabel("seconds since the first step")
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, labelcolor=LIGHT["ink"], fontsize=SMALL
    )
    return Chart("held", "Memory held over time, by pool", _describe(series, sizes), figure)


def stack_sizes(
    axes: "Axes", seconds: Sequence[float], sizes: Mapping[str, Sequence[float]]
) -> None:
    """Fill areas upon each other, one per name, on an axis of bytes from 0."""
    colours = spread_shades(len(sizes))
    floats = ([float(size) for size in held] for held in sizes.values())
    axes.stackplot(seconds, *floats, colors=colours, labels=list(sizes), linewidth=0, step="post")
    axes.set_yticks(byte_ticks(0, _peak(sizes)))
    axes.yaxis.set_major_formatter(lambda value, _: short_bytes(value))
    axes.grid(axis="y")
    axes.set_ylim(0)


def _peak(sizes: Mapping[str, Sequence[float]]) -> float:
    return max((sum(moment) for moment in zip(*sizes.values(), strict=True)), default=0)


def _describe(series: MemorySeries, sizes: Mapping[str, Sequence[float]]) -> str:
    most = ", ".join(
        f"{max(each.held, default=0):,} of {each.units:,} {each.name}" for each in series.units
    )
    return f"{format_bytes(_peak(sizes))} at the peak in {', '.join(sizes)}. At most {most}."
