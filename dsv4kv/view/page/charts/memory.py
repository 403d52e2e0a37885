"""Where the cache's bytes lie: pools as bars, and what was held over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from dsv4kv.record.profile import KernelTable
from dsv4kv.record.schema import CacheSummary
from dsv4kv.record.telemetry import MemorySeries
from dsv4kv.units import format_bytes, format_duration
from dsv4kv.view.page.charts.figure import (
    LIGHT,
    SMALL,
    Chart,
    byte_ticks,
    new_figure,
    short_bytes,
    spread_shades,
    write,
)
from dsv4kv.view.profile import titles
from dsv4kv.view.telemetry import pool_sizes, share_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


_MOST = 14
_LONGEST_NAME = 28


def kernels_chart(table: KernelTable) -> Chart:
    """A bar for each of the longest kernels, and one for all others together."""
    rows = sorted(table.kernels, key=lambda row: -row.total_ns)
    whole = sum(row.total_ns for row in rows) or 1
    times = [(name, row.total_ns) for name, row in zip(titles(rows), rows, strict=True)][:_MOST]
    if rest := rows[_MOST:]:
        times.append((f"{len(rest):,} others", sum(row.total_ns for row in rest)))
    shares = [f"{time / whole * 100:.0f} %" for _, time in times]
    bars = [
        Bar(_cut(name), time, f"{format_duration(time)}, {share}")
        for (name, time), share in zip(times, shares, strict=True)
    ]
    told = ", ".join(f"{name} {share}" for (name, _), share in zip(times, shares, strict=True))
    figure = draw_bars(bars, room=0.5)
    return Chart("kernels", "Time of each kernel, all calls", f"{told}.", figure)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
