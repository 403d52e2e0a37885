"""What happened over time: memory held, requests, the machine, and the pieces of one step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import nan
from typing import TYPE_CHECKING

from dsv4kv.measure.profilers.classify import CATEGORIES, Category, shorten
from dsv4kv.runs.profile import Timeline
from dsv4kv.runs.replay import ReplayResult
from dsv4kv.runs.telemetry import MemorySeries
from dsv4kv.units import format_bytes, format_duration
from dsv4kv.view.cells import format_number
from dsv4kv.view.charts.figure import (
    LIGHT,
    SMALL,
    Chart,
    byte_ticks,
    new_figure,
    plain_number,
    short_bytes,
    short_duration,
    spread_shades,
    write,
)
from dsv4kv.view.telemetry import pool_sizes, share_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_HEIGHT = 330
_NS_TO_S = 1e-9
_DASHES = ("solid", "dashed", "dotted", "dashdot")


def held_chart(series: MemorySeries) -> Chart:
    """Bytes held over time, pools stacked in shades; below, shares of what there is."""
    figure, (bytes_axes, shares_axes) = new_figure(_HEIGHT, 2, share_x=True, heights=(3, 2))
    seconds = [at * _NS_TO_S for at in series.at_ns]
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


def held_sizes(result: ReplayResult) -> dict[str, list[int]]:
    """Bytes at every moment: of running requests, shared with the cache, cached, checkpoints.

    Where replicas have units of different sizes, all count as the mean of them.
    """
    series = result.series
    sizes = {pool.name: _mean_bytes(result, pool.name) for pool in result.pools}
    rows = {
        "slots": ([r + p for r, p in zip(series.running, series.paused, strict=True)], "slots"),
        "a request's own blocks": (series.own_blocks, "blocks"),
        "shared blocks": (series.shared_blocks, "blocks"),
        "cached blocks": (series.cached_blocks, "blocks"),
        "checkpoints": (series.checkpoints, "checkpoints"),
    }
    return {name: [n * sizes[pool] for n in counts] for name, (counts, pool) in rows.items()}


def _mean_bytes(result: ReplayResult, name: str) -> int:
    pools = [pool for pool in result.pools if pool.name == name]
    units = sum(pool.units or 0 for pool in pools)
    if len(pools) == 1 or not units:
        return pools[0].unit_bytes
    return round(sum((pool.units or 0) * pool.unit_bytes for pool in pools) / units)


def time_chart(result: ReplayResult) -> Chart:
    """Memory above, requests below, over the time of the replay."""
    figure, (memory, requests) = new_figure(_HEIGHT, 2, share_x=True, heights=(3, 2))
    series = result.series
    stack_sizes(memory, [at * _NS_TO_S for at in series.at_ns], held_sizes(result))
    _draw_requests(requests, result)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, labelcolor=LIGHT["ink"], fontsize=SMALL
    )
    summary = (
        f"{len(series.at_ns)} moments; at most {max(series.running, default=0):,} requests ran, "
        f"{max(series.waiting, default=0):,} waited and {max(series.paused, default=0):,} paused."
    )
    return Chart("replay", "Memory held and requests over time", summary, figure)


def _draw_requests(axes: "Axes", result: ReplayResult) -> None:
    series = result.series
    seconds = [at * _NS_TO_S for at in series.at_ns]
    looks = {"running": "accent", "waiting": "warning", "paused": "bad"}
    for name, role in looks.items():
        axes.step(seconds, getattr(series, name), where="post", color=LIGHT[role], linewidth=1.1,
                  label=name)  # fmt: skip
    axes.set_ylabel("requests")
    axes.set_xlabel("seconds of the replay")
    axes.grid(axis="y")
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.set_ylim(0)
    if len(seconds) > 1:
        axes.set_xlim(seconds[0], seconds[-1])


_TRACK, _AXIS = 74, 34


@dataclass(frozen=True)
class Track:
    """A quantity read at moments, in seconds since the start; None where there was no answer."""

    name: str
    unit: str
    seconds: Sequence[float]
    values: Sequence[float | None]


@dataclass(frozen=True)
class Span:
    """A stretch of time, in seconds since the start, and why the clocks were held down then."""

    start_s: float
    end_s: float
    reason: str


def telemetry_chart(tracks: Sequence[Track], spans: Sequence[Span], note: str = "") -> Chart:
    """A panel per quantity over one time axis; spans are shaded in all, ``note`` says which."""
    figure, panels = new_figure(_TRACK * len(tracks) + _AXIS, len(tracks), share_x=True)
    for axes, track in zip(panels, tracks, strict=True):
        _draw_track(axes, track)
        for span in spans:
            axes.axvspan(span.start_s, span.end_s, color=LIGHT["heat"], lw=0, zorder=0)
    panels[-1].set_xlim(
        min(track.seconds[0] for track in tracks), max(track.seconds[-1] for track in tracks)
    )
    panels[-1].set_xlabel("seconds since the start")
    names = ", ".join(track.name for track in tracks)
    text = f"{names} over time. {note}".strip()
    return Chart("telemetry", "The machine while it was measured", text, figure)


def spans_sentence(spans: Sequence[Span]) -> str:
    """How long the device was held back, by reason, as a sentence."""
    totals: dict[str, float] = {}
    for span in spans:
        totals[span.reason] = totals.get(span.reason, 0) + span.end_s - span.start_s
    if not totals:
        return "Nothing slowed it down."
    shaded = ", ".join(f"{reason} for {length:.2f} s" for reason, length in totals.items())
    return f"Shaded: {shaded}."


def _draw_track(axes: "Axes", track: Track) -> None:
    values = [nan if value is None else value for value in track.values]
    known = [value for value in track.values if value is not None]
    axes.plot(track.seconds, values, color=LIGHT["accent"], linewidth=1.3)
    room = (max(known) - min(known)) * 0.15 or abs(max(known)) * 0.05 or 1.0
    axes.set_ylim(min(known) - room, max(known) + room)
    axes.locator_params(axis="y", nbins=3)
    axes.yaxis.set_major_formatter(lambda value, _: plain_number(round(value, 6)))
    axes.grid(axis="y")
    place = axes.transAxes
    write(axes, 0, 1.0, track.name, fontweight="bold", va="bottom", transform=place)
    low, high = format_number(min(known)), format_number(max(known))
    shown = f"{low} {track.unit}" if low == high else f"{low} to {high} {track.unit}"
    write(axes, 1, 1.0, shown, "muted", ha="right", va="bottom", transform=place)


# Okabe and Ito's colours, which colour-blind readers can distinguish, too
_COLOURS: dict[Category, str] = {
    "insert": "#d55e00",
    "gather": "#0072b2",
    "compress": "#009e73",
    "indexer": "#cc79a7",
    "attention": "#e69f00",
    "other": "#999999",
}
_WIDE, _ROW, _FRAME = 1000, 20, 90
_LEAST = 0.0004  # of the step: a shorter piece would not be seen
_LETTER = 0.007  # of the step: a name is written where it has room


def timeline_chart(timeline: Timeline, title: str) -> Chart:
    """A row for each lane of one step, and more where pieces overlap."""
    from matplotlib.collections import PolyCollection

    rows = _rows(timeline)
    figure, (axes,) = new_figure(_FRAME + _ROW * sum(rows), width=_WIDE)
    chart = Chart("timeline", title, _describe_timeline(timeline), figure)
    boxes = list(_boxes(timeline, rows))
    whole = max((box.end_ns for box in boxes), default=0) or 1
    for category in CATEGORIES:
        own = [box for box in boxes if box.category == category]
        corners = [_corners(box, whole * _LEAST) for box in own]
        drawn = PolyCollection(
            corners, facecolors=_COLOURS[category], edgecolors=LIGHT["paper"], linewidths=0.3,
            label=category,
        )  # fmt: skip
        axes.add_collection(drawn)
        if own:
            chart.tip(drawn, *(f"{b.name}: {format_duration(b.duration_ns)}" for b in own))
    for box in boxes:
        if len(box.name) * _LETTER * whole < box.duration_ns:
            middle = box.row + 0.5
            write(axes, box.start_ns + whole * 0.003, middle, box.name, "paper", fontsize=8)
    axes.set_xlim(0, whole)
    axes.set_ylim(sum(rows), 0)
    axes.set_yticks([sum(rows[:n]) + 0.5 for n in range(len(rows))], list(timeline.lanes))
    axes.xaxis.set_major_formatter(lambda value, _: short_duration(value))
    axes.grid(axis="x")
    figure.legend(
        loc="outside upper left", ncols=len(CATEGORIES), frameon=False, labelcolor=LIGHT["ink"]
    )
    return chart


@dataclass(frozen=True)
class _Box:
    """A piece of a step in a row of the picture."""

    name: str
    category: Category
    row: int
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


def _boxes(timeline: Timeline, rows: Sequence[int]) -> Iterator[_Box]:
    for name, lane, start, duration, row in zip(
        timeline.name,
        timeline.lane,
        timeline.start_ns,
        timeline.duration_ns,
        _placed(timeline),
        strict=True,
    ):
        category = timeline.categories[name]
        yield _Box(
            shorten(timeline.names[name]), category, sum(rows[:lane]) + row, start, duration
        )


def _corners(box: _Box, least: float) -> list[tuple[float, float]]:
    left, right = box.start_ns, box.start_ns + max(least, box.duration_ns)
    top, bottom = box.row + 0.1, box.row + 0.9
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _describe_timeline(timeline: Timeline) -> str:
    lanes = ", ".join(timeline.lanes)
    left = f"; {timeline.left_out:,} pieces are left out" if timeline.left_out else ""
    return f"{len(timeline.name):,} pieces of work on {lanes or 'no lane'}{left}."


def _placed(timeline: Timeline) -> list[int]:
    """Row of every piece within its lane: the first that is free when it begins."""
    free: list[list[int]] = [[] for _ in timeline.lanes]
    order = sorted(
        range(len(timeline.name)), key=lambda i: (timeline.start_ns[i], -timeline.duration_ns[i])
    )
    rows = [0] * len(order)
    for i in order:
        ends = free[timeline.lane[i]]
        start = timeline.start_ns[i]
        row = next((row for row, end in enumerate(ends) if end <= start), len(ends))
        ends[row : row + 1] = [start + timeline.duration_ns[i]]
        rows[i] = row
    return rows


def _rows(timeline: Timeline) -> list[int]:
    """Rows that each lane needs."""
    rows = [1] * len(timeline.lanes)
    for lane, row in zip(timeline.lane, _placed(timeline), strict=True):
        rows[lane] = max(rows[lane], row + 1)
    return rows
