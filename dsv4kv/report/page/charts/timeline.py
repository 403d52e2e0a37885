"""What the device did while it was measured: clocks, power, temperature, and when it slowed."""

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from dsv4kv.report.cells import format_number
from dsv4kv.report.page.charts.marks import plain_number, write
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import Chart, new_figure
from dsv4kv.report.page.inputs import Span, Track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
