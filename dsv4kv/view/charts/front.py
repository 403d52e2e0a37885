"""Deployments by cost, or rate, and a time they have: the front, and what it leaves behind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsv4kv.view.charts.figure import (
    LIGHT,
    Chart,
    fit,
    new_figure,
    scale_log,
    short_duration,
    write,
)

_HEIGHT = 300
_LETTERS = 26


@dataclass(frozen=True)
class Place:
    """A deployment on the chart.

    Attributes:
        name: What it is.
        cost: GPUs, money in an hour, or requests a second.
        time_s: Its time.
        factor: What that is right within.
        keeps: Whether every limit is kept.
        leads: Whether no other beats it in both.
    """

    name: str
    cost: float
    time_s: float
    factor: float
    keeps: bool
    leads: bool


def front_chart(
    places: Sequence[Place],
    label: str,
    limit_s: float,
    name: str,
    axis: str,
    show: Callable[[float], str],
) -> Chart:
    """Cost, or a rate, against a limited time: filled where all limits are kept.

    What is on the front is named.

    Args:
        places: At least one.
        label: Of the time, ``ttft_p99``.
        limit_s: Its limit.
        name: What it is set against, ``Cost``.
        axis: The same for the axis, ``GPUs``.
        show: One of it as text.
    """
    figure, (axes,) = new_figure(_HEIGHT)
    chart = Chart("front", f"{name} against {label}", _describe(places, label, name, show), figure)
    front = sorted((each for each in places if each.leads), key=lambda each: each.cost)
    times = [each.time_s for each in places]
    arms = [limit_s, *(each.time_s * each.factor for each in front)]
    low = min([limit_s, *times, *(each.time_s / each.factor for each in front)])
    scale_log(axes, "y", low / 1.3 * 1e9, max(*times, *arms) * 1.3 * 1e9)
    axes.set_xlim(0, max(each.cost for each in places) * 1.35)
    gap = 0.015 * axes.get_xlim()[1]
    axes.axhline(limit_s * 1e9, color=LIGHT["bad"], linewidth=0.9)
    write(axes, axes.get_xlim()[1], limit_s * 1e9, "limit", "bad", ha="right", va="bottom")
    costs, ends = [each.cost for each in front], [each.time_s * 1e9 for each in front]
    rises = ends[-1:] > ends[:1]
    axes.step(costs, ends, where="pre" if rises else "post", color=LIGHT["rule"], linewidth=1.2)
    for each in places:
        time_ns = each.time_s * 1e9
        if each.leads:
            reach = [[time_ns * (1 - 1 / each.factor)], [time_ns * (each.factor - 1)]]
            axes.errorbar(each.cost, time_ns, yerr=reach, color=LIGHT["accent"], elinewidth=1.2)
            write(axes, each.cost + gap, time_ns, fit(each.name, _LETTERS), va="top")
        (mark,) = axes.plot(
            each.cost, time_ns, "o", markersize=6 if each.leads else 4.5, zorder=3,
            color=LIGHT["accent"] if each.leads else LIGHT["muted"],
            markerfacecolor=None if each.keeps else LIGHT["paper"],
        )  # fmt: skip
        chart.tip(mark, f"{each.name}: {show(each.cost)}, {short_duration(time_ns)}")
    axes.yaxis.set_major_formatter(lambda value, _: short_duration(value))
    axes.grid(axis="y")
    axes.set_xlabel(axis)
    return chart


def _describe(places: Sequence[Place], label: str, name: str, show: Callable[[float], str]) -> str:
    front = ", ".join(
        f"{each.name} {show(each.cost)} {short_duration(each.time_s * 1e9)}"
        for each in places
        if each.leads
    )
    return f"{len(places)} deployments by {name.lower()} and {label}; on the front {front}."
