"""Roofline of operations that only move bytes: the size of a call against its rate.

There is no arithmetic to speak of, so the roofs are rates of plain memory traffic, and what keeps
small calls below them is the time that a call takes at least: lines of equal time are drawn.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4kv.report.page.charts.marks import byte_ticks, scale_log, write
from dsv4kv.report.page.charts.operations import (
    OpRate,
    Roof,
    describe_rate,
    describe_rates,
    name_roofs,
    scale_rates,
)
from dsv4kv.report.page.colours import LIGHT
from dsv4kv.report.page.figure import Chart, new_figure, short_bytes, short_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 330
_APART = 1.5  # a label of a diagonal keeps this factor from roofs and corners
_NEAR = 13.0  # units: marks this near share a label
_LETTER, _LINE, _MARK = (
    6.2,
    10.0,
    3.0,
)  # units: width and height of a label's text, a mark's radius

Box = tuple[float, float, float, float]
"""Left, bottom, right, top, in units of the figure."""


def roofline_chart(operations: Sequence[OpRate], roofs: Sequence[Roof]) -> Chart:
    """Rate over the size of a call: under the roofs, and along lines of equal time."""
    figure, (axes,) = new_figure(_HEIGHT)
    chart = Chart(
        "roofline",
        "Roofline: size of a call against its rate",
        "Operations by mean useful bytes of a call and GB/s; diagonals are equal times. "
        + describe_rates(operations, roofs),
        figure,
    )
    sizes = [each.call_bytes for each in operations]
    scale_log(axes, "x", min(sizes) / 2.5, max(sizes) * 4, byte_ticks)
    scale_rates(axes, "y", operations, roofs)
    _draw_times(axes, roofs)
    for roof in roofs:
        axes.axhline(roof.gbps, color=LIGHT["ink"], linewidth=0.9)
    for each in operations:
        face = LIGHT["paper"] if each.in_cache else LIGHT["accent"]
        (mark,) = axes.plot(
            each.call_bytes, each.rate.value, "o", markersize=6, color=LIGHT["accent"],
            markerfacecolor=face,
        )  # fmt: skip
        chart.tip(mark, describe_rate(each))
    axes.xaxis.set_major_formatter(lambda value, _: short_bytes(value))
    axes.set_xlabel("useful bytes of a call, mean")
    axes.set_ylabel("GB/s")
    figure.draw_without_rendering()  # places are known only then
    _number(axes, operations)
    if roofs:
        highest = max(roof.gbps for roof in roofs)
        write(axes, axes.get_xlim()[0], highest * 1.12, f" {name_roofs(roofs)}", va="bottom")
    return chart


def _draw_times(axes: "Axes", roofs: Sequence[Roof]) -> None:
    """Diagonals: bytes over rate (GB/s, so bytes per ns) is the time of a call."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for exponent in range(1, 12):
        time_ns = 10.0**exponent
        axes.plot([left, right], [left / time_ns, right / time_ns], color=LIGHT["rule"], lw=0.9,
                  scalex=False, scaley=False)  # fmt: skip
        at = min(right, top * time_ns) / 1.15
        rate = at / time_ns
        is_free = all(not 1 / _APART < roof.gbps / rate < _APART for roof in roofs)
        if is_free and rate > bottom * _APART and at > left * _APART:
            write(axes, at, rate, short_duration(time_ns), "muted", ha="right", va="top")


def _number(axes: "Axes", operations: Sequence[OpRate]) -> None:
    """Numbers beside the marks, once each; marks that touch share one label."""
    labels: list[tuple[float, float, list[int]]] = []
    marks = {
        each: axes.transData.transform((each.call_bytes, each.rate.value)) for each in operations
    }
    taken = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in marks.values()]
    for each in {each.number: each for each in operations}.values():
        x, y = marks[each]
        near = [told for at_x, at_y, told in labels if abs(at_x - x) + abs(at_y - y) < _NEAR]
        if near:
            near[0].append(each.number)
        else:
            labels.append((x, y, [each.number]))
    for x, y, numbers in labels:
        text = ", ".join(map(str, sorted(numbers)))
        box = _find_room(x, y, len(text) * _LETTER, taken)
        taken.append(box)
        at_x, at_y = axes.transData.inverted().transform((box[0], (box[1] + box[3]) / 2))
        write(axes, at_x, at_y, text, clip_on=False)


def _find_room(x: float, y: float, width: float, taken: Sequence[Box]) -> Box:
    """Where a label stands: right of its mark, else left, below or above it, where it is free."""
    half, gap = _LINE / 2, 2 * _MARK
    places = (
        (x + gap, y + 1 - half),
        (x - gap - width, y + 1 - half),
        (x - width / 2, y - gap - _LINE),
        (x - width / 2, y + gap),
    )
    boxes = [(left, bottom, left + width, bottom + _LINE) for left, bottom in places]
    return next((box for box in boxes if not any(_overlap(box, each) for each in taken)), boxes[0])


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
