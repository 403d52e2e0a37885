"""A swept setting against what came out: lines over numbers, labelled bars for choices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log10
from typing import TYPE_CHECKING, Any

from dsv4kv.view.charts.bars import Bar, draw_bars
from dsv4kv.view.charts.figure import (
    LIGHT,
    SHADES,
    SMALL,
    Chart,
    fit,
    new_figure,
    round_ticks,
    scale_log,
    spread_shades,
)
from dsv4kv.view.sparks import are_far_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_HEIGHT, _LEGEND_LINE = 236, 15
_MARKERS = "osD^vP"
_STYLES = ("-", "--", ":")
MOST_LINES = 2 * len(SHADES)
"""So many lines can be distinguished: every shade, whole and dashed."""
_LEGEND_LETTERS, _KEY_LETTERS = 54, 4  # across a chart, and next to each name
_AXIS_LETTERS = 60  # across an axis
_NAME_LETTERS, _TEXT_SHARE = 26, 0.026  # of a bar's name; room for a letter of its text
_LOG_SPAN = 20.0  # from here on an axis from zero hides the small values


@dataclass(frozen=True)
class Point:
    """A case's place in the sweep, its line's name, and what came out.

    Attributes:
        x: A number, or the name of a choice.
        line: The other settings; empty where there are none.
        value: What came out; 0 where nothing did.
        ends: Of its interval, where there is one.
    """

    x: Any
    line: str
    value: float
    ends: tuple[float, float] | None = None

    @property
    def reach(self) -> tuple[float, float]:
        """The interval; the value twice where there is none."""
        return self.ends or (self.value, self.value)


@dataclass(frozen=True)
class Metric:
    """One chart.

    Attributes:
        key: Its key.
        title: What came out, with its unit.
        points: At least one.
        show: Formats a value.
        ticks: Places those of the values' axis; round numbers if left out.
        names: What numbers of the setting are called, where not as they are.
        may_be_log: Whether values far apart get a logarithmic axis; shares of a whole do not.
        note: The chart's note.
    """

    key: str
    title: str
    points: Sequence[Point]
    show: Callable[[float], str]
    ticks: Callable[[float, float], list[float]] | None = None
    names: Mapping[float, str] = field(default_factory=dict)
    may_be_log: bool = True
    note: str = ""

    @property
    def lines(self) -> list[str]:
        """Names of lines, in the order of the points."""
        return list(dict.fromkeys(point.line for point in self.points))

    @property
    def is_of_choices(self) -> bool:
        """Whether the setting's values have no order that means anything."""
        return not all(_is_number(point.x) for point in self.points)

    def name(self, x: Any) -> str:
        """A value of the setting in words."""
        if x in self.names:
            return self.names[x]
        return f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else str(x)


def sweep_chart(metric: Metric, x_label: str) -> Chart:
    """Choices as bars with their values, numbers as lines in shades from the first to the last."""
    figure = _draw_choices(metric) if metric.is_of_choices else _draw_lines(metric, x_label)
    return Chart(metric.key, metric.title, _describe(metric, x_label), figure, metric.note)


def _draw_choices(metric: Metric) -> "Figure":
    """A group of bars for each choice, one for each line in it."""
    shades = dict(zip(metric.lines, spread_shades(len(metric.lines)), strict=True))
    bars = []
    for x in dict.fromkeys(point.x for point in metric.points):
        group = [point for point in metric.points if point.x == x]
        bars += [
            Bar(
                fit(metric.name(x), _NAME_LETTERS) if point is group[0] else "",
                point.value,
                f"{metric.show(point.value)}  {fit(point.line, _NAME_LETTERS)}".rstrip(),
                ends=point.ends,
                colour=shades[point.line],
            )
            for point in group
        ]
    return draw_bars(bars, room=_TEXT_SHARE * (2 + max(len(bar.text) for bar in bars)))


def _draw_lines(metric: Metric, x_label: str) -> "Figure":
    names = metric.lines
    labels = [fit(name, _LEGEND_LETTERS - _KEY_LETTERS) for name in names]
    columns = max(1, _LEGEND_LETTERS // (_KEY_LETTERS + max(map(len, labels))))
    legend = ceil(len(names) / columns) if len(names) > 1 else 0
    figure, (axes,) = new_figure(_HEIGHT + legend * _LEGEND_LINE)
    places = _places([point.x for point in metric.points])
    floor = _scale(axes, metric, places)
    for number, (name, shade) in enumerate(zip(names, spread_shades(len(names)), strict=True)):
        line = sorted((p for p in metric.points if p.line == name), key=lambda p: places[p.x])
        _draw_line(axes, line, places, floor, number, shade, labels[number])
    axes.set_xlabel(x_label)
    if legend:
        figure.legend(
            loc="outside upper left", ncols=columns, frameon=False,
            labelcolor=LIGHT["ink"], fontsize=SMALL,
        )  # fmt: skip
    return figure


def _draw_line(
    axes: "Axes",
    line: Sequence[Point],
    places: Mapping[Any, float],
    floor: float,
    number: int,
    shade: str,
    label: str,
) -> None:
    """Marks with their intervals; a hollow one on the axis where nothing came out."""
    xs, ys = [places[point.x] for point in line], [max(floor, point.value) for point in line]
    marker = _MARKERS[number % len(_MARKERS)]
    arms = [
        [y - max(floor, min(y, point.reach[0])) for y, point in zip(ys, line, strict=True)],
        [max(y, point.reach[1]) - y for y, point in zip(ys, line, strict=True)],
    ]
    axes.errorbar(
        xs,
        ys,
        yerr=arms if any(point.ends for point in line) else None,
        label=label,
        color=shade,
        linestyle=_STYLES[number // len(SHADES) % len(_STYLES)],
        linewidth=1.5,
        marker=marker,
        markersize=4.5,
    )
    nothing = [x for x, point in zip(xs, line, strict=True) if not point.value]
    if nothing:
        axes.plot(
            nothing, [floor] * len(nothing), marker, color=shade, linestyle="none", zorder=3,
            markersize=4.5, markerfacecolor=LIGHT["paper"], clip_on=False,
        )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _places(values: Sequence[Any]) -> dict[Any, float]:
    """Numbers where they are; those far apart by their logarithms."""
    ordered = sorted(set(values))
    if len(ordered) > 1 and are_far_apart(ordered):
        return {value: log10(value) for value in ordered}
    return {value: float(value) for value in ordered}


def _scale(axes: "Axes", metric: Metric, places: dict[Any, float]) -> float:
    """Scale and label both axes; where the values' axis begins."""
    positive = [point.value for point in metric.points if point.value > 0] or [1.0]
    highest = max(point.reach[1] for point in metric.points)
    floor = 0.0
    if metric.may_be_log and highest / min(positive) > _LOG_SPAN:
        floor = min(positive) / 1.3
        scale_log(axes, "y", floor, highest * 1.2, metric.ticks or round_ticks)
    else:
        high = highest * 1.1 or 1
        axes.set_ylim(0, high)
        axes.locator_params(axis="y", nbins=5)
        if metric.ticks:
            axes.set_yticks(metric.ticks(0, high))
    axes.yaxis.set_major_formatter(lambda value, _: metric.show(value))
    axes.grid(axis="y")
    low, high = min(places.values()), max(places.values())
    names = {place: fit(metric.name(x), _AXIS_LETTERS // 2) for x, place in places.items()}
    named = _spread_names(names, (high - low) or 1.0)
    axes.set_xticks(list(named), list(named.values()))
    room = (high - low) * 0.06 or 0.5
    axes.set_xlim(low - room, high + room)
    return floor


def _spread_names(names: Mapping[float, str], length: float) -> dict[float, str]:
    """As many of the names from the first on as there is room for next to each other."""
    kept: dict[float, str] = {}
    end = float("-inf")
    for place, name in sorted(names.items()):
        half = (len(name) + _KEY_LETTERS) / 2 / _AXIS_LETTERS * length
        if place - half >= end:
            kept[place] = name
            end = place + half
    return kept


def _describe(metric: Metric, x_label: str) -> str:
    ordered = sorted(metric.points, key=lambda point: point.value)
    ends = " and ".join(
        f"{metric.show(point.value)} at {x_label} {metric.name(point.x)}"
        + (f", {point.line}" if point.line else "")
        for point in (ordered[0], ordered[-1])
    )
    return f"{len(metric.points)} cases between {ends}."
