"""A swept setting against what it changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from dsv4kv.measure.statistics import Estimate
from dsv4kv.report.histogram import are_far_apart
from dsv4kv.report.page.charts.marks import fit, round_ticks, scale_log, spread_shades
from dsv4kv.report.page.colours import LIGHT, SHADES
from dsv4kv.report.page.figure import SMALL, Chart, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT, _LEGEND_LINE = 236, 15
_MARKERS = "osD^vP"
_LEGEND_LETTERS, _KEY_LETTERS = 54, 4  # across a chart, and beside each name
_AXIS_LETTERS = 60  # across an axis
_LOG_SPAN = 20.0  # from here on an axis from zero hides the small values


@dataclass(frozen=True)
class Point:
    """A case's place in the sweep, its line's name, and what came out."""

    x: Any
    line: str
    estimate: Estimate


@dataclass(frozen=True)
class Metric:
    """One chart: ``show`` formats a value of the y axis, ``ticks`` places them."""

    key: str
    title: str
    points: Sequence[Point]
    show: Callable[[float], str]
    ticks: Callable[[float, float], list[float]] | None = None


def sweep_chart(metric: Metric, x_label: str) -> Chart:
    """Lines over the swept setting, in shades from the first to the last, with intervals."""
    names = list(dict.fromkeys(point.line for point in metric.points))
    told = [fit(name, _LEGEND_LETTERS - _KEY_LETTERS) for name in names]
    columns = max(1, _LEGEND_LETTERS // (_KEY_LETTERS + max(map(len, told))))
    legend = ceil(len(names) / columns) if len(names) > 1 else 0
    figure, (axes,) = new_figure(_HEIGHT + legend * _LEGEND_LINE)
    places = _places([point.x for point in metric.points])
    shades = spread_shades(len(names))
    for number, name in enumerate(names):
        line = [point for point in metric.points if point.line == name]
        axes.errorbar(
            [places[point.x] for point in line],
            [point.estimate.value for point in line],
            yerr=[point.estimate.half_width or 0 for point in line],
            label=told[number],
            color=shades[number],
            linestyle="-" if number < len(SHADES) else "--",
            linewidth=1.5,
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4.5,
        )
    _scale(axes, metric, places)
    axes.set_xlabel(x_label)
    if legend:
        figure.legend(
            loc="outside upper left", ncols=columns, frameon=False,
            labelcolor=LIGHT["ink"], fontsize=SMALL,
        )  # fmt: skip
    return Chart(metric.key, metric.title, _describe(metric, x_label), figure)


def _places(values: Sequence[Any]) -> dict[Any, float]:
    """Numbers where they are; names, and numbers far apart, at equal distances."""
    told = list(dict.fromkeys(values))
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in told):
        ordered = sorted(told)
        if len(ordered) > 1 and not are_far_apart(ordered):
            return {value: float(value) for value in ordered}
        told = ordered
    return {value: float(place) for place, value in enumerate(told)}


def _scale(axes: "Axes", metric: Metric, places: dict[Any, float]) -> None:
    ends = [p.estimate.value + (p.estimate.half_width or 0) for p in metric.points]
    low, high = min(p.estimate.value for p in metric.points), max(ends) * 1.1 or 1
    if low > 0 and max(ends) / low > _LOG_SPAN:
        scale_log(axes, "y", low / 1.3, high * 1.2, metric.ticks or round_ticks)
    else:
        axes.set_ylim(0, high)
        axes.locator_params(axis="y", nbins=5)
        if metric.ticks:
            axes.set_yticks(metric.ticks(0, high))
    axes.yaxis.set_major_formatter(lambda value, _: metric.show(value))
    axes.grid(axis="y")
    named = _spread_names(
        {place: fit(_name(value), _AXIS_LETTERS // 2) for value, place in places.items()}
    )
    axes.set_xticks(list(named), list(named.values()))
    low, high = min(places.values()), max(places.values())
    room = (high - low) * 0.06 or 0.5
    axes.set_xlim(low - room, high + room)


def _spread_names(names: dict[float, str]) -> dict[float, str]:
    """As many of the names, one in so many, as there is room for; each takes the longest's."""
    ordered = sorted(names.items())
    most = max(1, _AXIS_LETTERS // (_KEY_LETTERS + max(map(len, names.values()))))
    return dict(ordered[:: ceil(len(ordered) / most)])


def _name(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _describe(metric: Metric, x_label: str) -> str:
    best = min(metric.points, key=lambda point: point.estimate.value)
    most = max(metric.points, key=lambda point: point.estimate.value)
    ends = " and ".join(
        f"{metric.show(point.estimate.value)} at {x_label} {_name(point.x)}"
        + (f", {point.line}" if point.line else "")
        for point in (best, most)
    )
    return f"{len(metric.points)} cases between {ends}."
