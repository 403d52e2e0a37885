"""How long something took: the shape of its samples, and their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4kv.measure.statistics import Estimate, Summary, summarize
from dsv4kv.units import format_duration
from dsv4kv.view.charts.figure import (
    LIGHT,
    Chart,
    new_figure,
    scale_log,
    short_duration,
    show_linear_durations,
    write,
)
from dsv4kv.view.sparks import Bins, are_far_apart, make_bins

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_BINS = 48
_STRETCHES = 120  # of samples in order: more cannot be distinguished
_ROW, _SHARED_ROW, _AXIS = 64, 44, 34
_LETTERS = 58  # across a chart: a name and its numbers


@dataclass(frozen=True)
class Samples:
    """Durations under a name; at least one."""

    name: str
    samples_ns: Sequence[int]


def distribution_chart(rows: Sequence[Samples], *, shared: bool = False) -> Chart:
    """Histograms under each other, each on an axis of its own or all on one (``shared``)."""
    height = len(rows) * (_SHARED_ROW if shared else _ROW) + (_AXIS if shared else 0)
    figure, every = new_figure(height, len(rows), share_x=shared)
    summaries = [summarize(row.samples_ns) for row in rows]
    common = make_bins([n for row in rows for n in row.samples_ns], _BINS)
    for axes, row, summary in zip(every, rows, summaries, strict=True):
        bins = common if shared else make_bins(row.samples_ns, _BINS)
        _draw_row(axes, row, summary, bins)
    medians = ", ".join(
        f"{row.name} {format_duration(summary.median)}"
        for row, summary in zip(rows, summaries, strict=True)
    )
    return Chart("latencies", "How long actions took", f"Medians: {medians}.", figure)


def order_chart(row: Samples) -> Chart:
    """Samples in the order they were taken: whether the machine held its pace."""
    figure, (axes,) = new_figure(190)
    parts = np.array_split(np.array(row.samples_ns), min(_STRETCHES, len(row.samples_ns)))
    ends = np.cumsum([len(part) for part in parts])
    middle = ends - np.array([len(part) for part in parts]) / 2
    low, centre, high = ([f(part) for part in parts] for f in (np.min, np.median, np.max))
    axes.fill_between(middle, low, high, color=LIGHT["tint"], linewidth=0)
    axes.plot(middle, centre, color=LIGHT["accent"], linewidth=1.2)
    axes.axhline(float(np.median(row.samples_ns)), color=LIGHT["muted"], linewidth=0.7)
    if are_far_apart(row.samples_ns):
        scale_log(axes, "y", min(low) / 1.1, max(high) * 1.1)
        axes.yaxis.set_major_formatter(lambda value, _: short_duration(value))
    else:
        axes.locator_params(axis="y", nbins=5)
        show_linear_durations(axes.yaxis, min(low), max(high))
    axes.grid(axis="y")
    axes.set_xlim(0, len(row.samples_ns))
    axes.set_xlabel("sample, in the order taken")
    first, last = np.median(parts[0]), np.median(parts[-1])
    return Chart(
        "order",
        f"Pace of {row.name}, duration of each sample",
        f"{len(row.samples_ns):,} samples; the first stretch has a median of "
        f"{format_duration(float(first))}, the last of {format_duration(float(last))}.",
        figure,
    )


def _draw_row(axes: "Axes", row: Samples, summary: Summary, bins: Bins) -> None:
    low, high = float(bins.edges[0]), float(bins.edges[-1])
    counts = bins.count(row.samples_ns)
    axes.stairs(counts, bins.edges, fill=True, color=LIGHT["tint"])
    axes.stairs(counts, bins.edges, color=LIGHT["accent"], linewidth=0.9)
    _mark_median(axes, summary)
    for percentile in (90.0, 99.0):
        if (value := summary.percentiles.get(percentile)) is not None:
            axes.axvline(value, 0, 0.55, color=LIGHT["muted"], linewidth=0.9, dashes=(2, 2))
    if bins.is_log:
        scale_log(axes, "x", low, high)
        axes.xaxis.set_major_formatter(lambda value, _: short_duration(value))
    else:
        axes.set_xlim(low, high)
        axes.locator_params(axis="x", nbins=4)
        show_linear_durations(axes.xaxis, low, high)
    axes.set_yticks([])
    axes.set_ylim(0, float(counts.max()) * 1.08)
    _title(axes, row, summary)


def _mark_median(axes: "Axes", summary: Summary) -> None:
    if summary.ci_low is not None and summary.ci_high is not None:
        axes.axvspan(summary.ci_low, summary.ci_high, color=LIGHT["accent"], alpha=0.3, lw=0)
    axes.axvline(summary.median, color=LIGHT["accent"], linewidth=1.4)


def _interval(median: Estimate) -> str:
    """`` ± 2 %``, or `` -1/+9 %`` where it is lopsided; empty where it is unknown."""
    if median.half_width is None or not median.value:
        return ""
    arms = median.arms if median.arms and median.is_lopsided else (median.half_width,)
    shares = [f"{arm / median.value * 100:.2g}" for arm in arms]
    return f" -{shares[0]}/+{shares[1]} %" if len(shares) > 1 else f" ± {shares[0]} %"


def _title(axes: "Axes", row: Samples, summary: Summary) -> None:
    place: dict[str, Any] = {"transform": axes.transAxes, "va": "bottom"}
    text = f"{format_duration(summary.median)}{_interval(summary.estimate)}, {summary.n:,} samples"
    if len(row.name) + len(text) > _LETTERS:
        text = text.partition(",")[0]
    room = _LETTERS - len(text)
    name = row.name if len(row.name) <= room else f"{row.name[: room - 1]}…"
    write(axes, 0, 1.0, name, fontweight="bold", **place)
    write(axes, 1, 1.0, text, "muted", ha="right", **place)
