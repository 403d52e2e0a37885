"""A swept setting against what it changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import TYPE_CHECKING, Any

from dsv4kv.measure.statistics import Estimate
from dsv4kv.measure.verdict import Verdict
from dsv4kv.view.page.charts.figure import (
    LIGHT,
    SHADES,
    SMALL,
    Chart,
    fit,
    new_figure,
    round_ticks,
    scale_log,
    spread_shades,
    write,
)
from dsv4kv.view.page.inputs import Compared, ComparedRow
from dsv4kv.view.sparks import are_far_apart

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


_ROW, _HEAD = 21, 58
_MOST_ROWS = 100  # more make a chart that nobody reads, and a page too large to send
_LETTERS = 30  # of a name: half of what is across
_LEAST = 103.0  # per cent to the left: no time falls by more than all of it
_FAR = 5.0  # rows beyond so many times the middle one's change would hide all others
_CHANGES = (Verdict.SLOWER, Verdict.FASTER)
_ROLES = {
    Verdict.SAME: "muted",
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.UNCLEAR: "warning",
}


def ratios_chart(compared: Compared) -> Chart:
    """Change of time in per cent with its interval; the band is what counts as no change.

    A hollow mark has no interval: there were too few launches to know one. Of very many rows
    those are drawn that are slower or faster, and of the others those that changed most.
    """
    rows = _choose(compared.rows)
    if compared.overall:
        rows.append(ComparedRow("geometric mean", compared.overall))
    figure, (axes,) = new_figure(_HEAD + _ROW * len(rows))
    floor = compared.floor * 100
    axes.axvspan(-floor, floor, color=LIGHT["rule"], lw=0, zorder=0)
    axes.axvline(0, color=LIGHT["ink"], linewidth=1.0)
    for number, row in enumerate(rows):
        _draw_row(axes, number, row)
    axes.axhline(len(rows) - 1.5, color=LIGHT["rule"], linewidth=0.8)
    axes.set_yticks(range(len(rows)), [fit(row.name, _LETTERS) for row in rows])
    axes.tick_params(axis="y", colors=LIGHT["ink"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    reach = _reach(rows, floor)
    for number, row in enumerate(rows):
        _point_outside(axes, number, row, reach)
    axes.set_xlim(-min(reach, _LEAST), reach)
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g} %" if value else "0")
    axes.grid(axis="x")
    axes.set_xlabel("← faster · change of time · slower →")
    told = ", ".join(f"{row.name} {_tell(row)}" for row in rows)
    title = f"Change of time from {compared.before} to {compared.after}"
    if len(compared.rows) > _MOST_ROWS:
        title += f": {_MOST_ROWS} of {len(compared.rows):,} rows, those that changed most"
    return Chart("comparison", title, f"{told}.", figure)


def _choose(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """The rows to draw, in the order of the table."""

    def weight(row: ComparedRow) -> tuple[bool, float]:
        return row.judgement.verdict in _CHANGES, abs(log(row.judgement.ratio))

    chosen = sorted(range(len(rows)), key=lambda n: weight(rows[n]), reverse=True)[:_MOST_ROWS]
    return [rows[n] for n in sorted(chosen)]


def _draw_row(axes: "Axes", number: int, row: ComparedRow) -> None:
    role = _ROLES[row.judgement.verdict]
    known = row.judgement.interval is not None
    face = LIGHT[role] if known else LIGHT["paper"]
    axes.hlines(number, *_ends(row), LIGHT[role], linewidth=1.8)
    value = to_percent(row.judgement.ratio)
    axes.plot(value, number, "o", color=LIGHT[role], markerfacecolor=face, markersize=5.5)
    write(axes, 1.02, number, _tell(row), role, transform=axes.get_yaxis_transform())


def _reach(rows: Sequence[ComparedRow], floor: float) -> float:
    """How far the axis goes to either side, in per cent.

    Whatever is slower or faster is on it; what is unclear and far out may leave it.
    """
    ends = sorted(max(map(abs, _ends(row))) for row in rows)
    usual = ends[(len(ends) - 1) // 2] * _FAR
    judged = [max(map(abs, _ends(row))) for row in rows if row.judgement.verdict in _CHANGES]
    return max(floor * 1.5, min(ends[-1], usual), *judged) * 1.08


def _point_outside(axes: "Axes", number: int, row: ComparedRow, reach: float) -> None:
    """An arrow at the edge where a change or its interval goes on beyond the axis."""
    for end in _ends(row):
        if abs(end) > reach:
            marker, place = (">", reach) if end > 0 else ("<", -reach)
            axes.plot(place * 0.985, number, marker, color=LIGHT[_ROLES[row.judgement.verdict]],
                      markersize=5)  # fmt: skip


def _ends(row: ComparedRow) -> tuple[float, float]:
    """Change at the ends of the interval in per cent; both the change itself without one."""
    low, high = row.judgement.interval or (row.judgement.ratio, row.judgement.ratio)
    return to_percent(low), to_percent(high)


def _tell(row: ComparedRow) -> str:
    change = to_percent(row.judgement.ratio)
    return f"{change:+.1f} %  {row.judgement.verdict.lower()}"


def to_percent(ratio: float) -> float:
    """Change of time in per cent, to a tenth and without a minus before a zero."""
    return round((ratio - 1) * 100, 1) + 0.0
