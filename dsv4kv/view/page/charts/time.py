"""A replay over its time: memory by what holds it, and requests."""

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from dsv4kv.record.replay import ReplayResult
from dsv4kv.view.cells import format_number
from dsv4kv.view.page.charts.figure import LIGHT, SMALL, Chart, new_figure, plain_number, write
from dsv4kv.view.page.charts.memory import stack_sizes
from dsv4kv.view.page.inputs import Span, Track

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_HEIGHT = 330
_NS_TO_S = 1e-9


def held_sizes(result: ReplayResult) -> dict[str, list[int]]:
    """Bytes at every moment: of running requests, shared with the cache, cached, checkpoints."""
    series = result.series
    sizes = {pool.name: pool.unit_bytes for pool in result.pools}
    rows = {
        "slots": ([r + p for r, p in zip(series.running, series.paused, strict=True)], "slots"),
        "a request's own blocks": (series.own_blocks, "blocks"),
        "shared blocks": (series.shared_blocks, "blocks"),
        "cached blocks": (series.cached_blocks, "blocks"),
        "checkpoints": (series.checkpoints, "checkpoints"),
    }
    return {name: [n * sizes[pool] for n in counts] for name, (counts, pool) in rows.items()}


def time_chart(result: ReplayResult) -> Chart:
    """Memory above, requests below, over the time of the replay."""
    figure, (memory, requests) = new_figure(_HEIGHT, 2, share_x=True, heights=(3, 2))
    series = result.series
    stack_sizes(memory, [at * _NS_TO_S for at in series.at_ns], held_sizes(result))
    _draw_requests(requests, result)
    figure.legend(
        loc="outside upper left", ncols=3, frameon=False, labelcolor=LIGHT["ink"], fontsize=SMALL
    )
    told = (
        f"{len(series.at_ns)} moments; at most {max(series.running, default=0):,} requests ran, "
        f"{max(series.waiting, default=0):,} waited and {max(series.paused, default=0):,} paused."
    )
    return Chart("replay", "Memory held and requests over time", told, figure)


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


_ROW, _AXIS = 74, 34


def telemetry_chart(tracks: Sequence[Track], spans: Sequence[Span], told: str = "") -> Chart:
    """A panel per quantity over one time axis; spans are shaded in all, ``told`` says which."""
    figure, panels = new_figure(_ROW * len(tracks) + _AXIS, len(tracks), share_x=True)
    for axes, track in zip(panels, tracks, strict=True):
        _draw_track(axes, track)
        for span in spans:
            axes.axvspan(span.start_s, span.end_s, color=LIGHT["heat"], lw=0, zorder=0)
    panels[-1].set_xlim(
        min(track.seconds[0] for track in tracks), max(track.seconds[-1] for track in tracks)
    )
    panels[-1].set_xlabel("seconds since the start")
    names = ", ".join(track.name for track in tracks)
    text = f"{names} over time. {told}".strip()
    return Chart("telemetry", "The machine while it was measured", text, figure)


def tell_spans(spans: Sequence[Span]) -> str:
    """How long the device was held back, by reason, as a sentence."""
    totals: dict[str, float] = {}
    for span in spans:
        totals[span.reason] = totals.get(span.reason, 0) + span.end_s - span.start_s
    if not totals:
        return "Nothing slowed it down."
    told = ", ".join(f"{reason} for {length:.2f} s" for reason, length in totals.items())
    return f"Shaded: {told}."


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
