"""Where the cache's bytes lie: pools as bars, and what was held over time."""

from collections.abc import Sequence

from dsv4kv.report.page.charts.bars import Bar, draw_bars
from dsv4kv.report.page.charts.marks import byte_ticks, spread_shades
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import SMALL, Chart, new_figure, short_bytes
from dsv4kv.report.page.inputs import Track
from dsv4kv.report.record import CacheSummary
from dsv4kv.units import format_bytes

_HEIGHT = 220


def pools_chart(cache: CacheSummary) -> Chart:
    """A bar per pool and layer type, the largest first; a dark tick where the plan said."""
    pools = sorted(cache.pools, key=lambda pool: -pool.allocated_bytes)
    bars = [
        Bar(
            name=pool.name if pool.layer_type == "all" else f"{pool.name} {pool.layer_type}",
            size=pool.allocated_bytes,
            text=format_bytes(pool.allocated_bytes),
            planned=pool.predicted_bytes,
        )
        for pool in pools
    ]
    total = format_bytes(sum(bar.size for bar in bars))
    told = f"{total} allocated: {', '.join(f'{bar.name} {bar.text}' for bar in bars)}."
    return Chart("pools", "Memory by pool, all layers", told, draw_bars(bars, room=0.24))


def held_chart(pools: Sequence[Track]) -> Chart:
    """Bytes held over time, the pools stacked in shades."""
    figure, (axes,) = new_figure(_HEIGHT)
    sizes = [[value or 0.0 for value in pool.values] for pool in pools]
    names = [pool.name for pool in pools]
    seconds = list(pools[0].seconds)
    axes.stackplot(seconds, *sizes, colors=spread_shades(len(pools)), labels=names, linewidth=0)
    peak = max(sum(moment) for moment in zip(*sizes, strict=True))
    axes.set_yticks(byte_ticks(0, peak))
    axes.yaxis.set_major_formatter(lambda value, _: short_bytes(value))
    axes.grid(axis="y")
    axes.set_xlim(seconds[0], seconds[-1])
    axes.set_ylim(0)
    axes.set_xlabel("seconds since the start")
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, labelcolor=LIGHT["ink"], fontsize=SMALL
    )
    told = f"{format_bytes(peak)} at the peak, in {', '.join(names)}."
    return Chart("held", "Memory held over time", told, figure)
