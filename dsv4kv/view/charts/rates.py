"""How fast operations moved bytes, compared with plain memory traffic on the same machine.

Roofline of operations that only move bytes: the size of a call against its rate. There is no
arithmetic to speak of, so the roofs are rates of plain memory traffic, and what keeps small calls
below them is the time that a call takes at least: lines of equal time are drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4kv.measure.statistics import Estimate, estimate_rate
from dsv4kv.runs.schema import Case
from dsv4kv.units import format_bytes, format_duration
from dsv4kv.view.cells import format_number
from dsv4kv.view.charts.figure import (
    LIGHT,
    Chart,
    byte_ticks,
    new_figure,
    plain_number,
    scale_log,
    short_bytes,
    short_duration,
    write,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class OpRate:
    """An operation's rate, numbered as in both charts.

    Attributes:
        number: From 1; cold and hot calls of the same operation share it.
        name: Operation and layer type.
        temperature: ``cold``, ``hot``, ``L2-resident`` or None.
        rate: GB/s over all calls.
        call_bytes: Mean useful bytes of a call.
    """

    number: int
    name: str
    temperature: str | None
    rate: Estimate
    call_bytes: float

    @property
    def in_cache(self) -> bool:
        """Whether its bytes may have come from the L2 cache."""
        return self.temperature in ("hot", "L2-resident")


@dataclass(frozen=True)
class Roof:
    """A rate to compare others with, in GB/s."""

    name: str
    gbps: float


def operation_rates(case: Case) -> list[OpRate]:
    """Operations that took any time, the fastest first."""
    found = []
    for each in case.operations:
        rate = estimate_rate(each.bytes, each.samples_ns)
        if rate and rate.value > 0:
            name = f"{each.name} {each.layer_type}"
            size = sum(each.bytes) / len(each.bytes)
            found.append(OpRate(0, name, each.temperature, rate, size))
    found.sort(key=lambda each: -each.rate.value)
    names = list(dict.fromkeys(each.name for each in found))
    return [replace(each, number=names.index(each.name) + 1) for each in found]


def describe_rates(operations: Sequence[OpRate], roofs: Sequence[Roof]) -> str:
    """How many there are, the slowest and the fastest, and the roofs, in sentences."""
    rates = [each.rate.value for each in operations]
    roof_text = "".join(f" {roof.name} reaches {format_number(roof.gbps)} GB/s." for roof in roofs)
    return (
        f"{len(operations)} operations between {format_number(min(rates))} and "
        f"{format_number(max(rates))} GB/s.{roof_text}"
    )


def describe_rate(each: OpRate) -> str:
    """One operation, for whoever points at its mark."""
    spread = "" if each.rate.half_width is None else f" ± {format_number(each.rate.half_width)}"
    warmth = f" {each.temperature}" if each.temperature else ""
    time = format_duration(each.call_bytes / each.rate.value)
    return (
        f"{each.name}{warmth}: {format_number(each.rate.value)}{spread} GB/s, "
        f"{format_bytes(each.call_bytes)} in {time}"
    )


def name_roofs(roofs: Sequence[Roof]) -> str:
    """Names and rates from the lowest to the highest, as the lines are drawn."""
    ordered = sorted(roofs, key=lambda roof: roof.gbps)
    return f"{', '.join(f'{roof.name} {format_number(roof.gbps)}' for roof in ordered)} GB/s"


def scale_rates(
    axes: "Axes", which: str, operations: Sequence[OpRate], roofs: Sequence[Roof]
) -> None:
    """A logarithmic axis of GB/s that holds every rate and roof, and room for names above."""
    rates = [*(each.rate.value for each in operations), *(roof.gbps for roof in roofs)]
    scale_log(axes, which, min(rates) / 1.6, max(rates) * (1.9 if which == "x" else 3.5))
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: plain_number(value))


_ROW, _HEAD = 19, 62


def rates_chart(operations: Sequence[OpRate], roofs: Sequence[Roof]) -> Chart:
    """A row per operation: its rate and interval, with the roofs as lines."""
    names = {each.number: each.name for each in operations}
    figure, (axes,) = new_figure(_HEAD + _ROW * len(names))
    chart = Chart(
        "rates", "Rate of each operation, GB/s", describe_rates(operations, roofs), figure
    )
    for each in operations:
        spread = each.rate.half_width or 0
        mark = axes.errorbar(
            each.rate.value,
            each.number,
            xerr=min(spread, each.rate.value * 0.99),
            fmt="o",
            markersize=5.5,
            color=LIGHT["accent"],
            markerfacecolor=LIGHT["paper"] if each.in_cache else LIGHT["accent"],
            elinewidth=1.4,
        )
        chart.tip(mark.lines[0], describe_rate(each))
    axes.set_yticks(list(names), [f"{name}  {number}" for number, name in names.items()])
    axes.tick_params(axis="y", colors=LIGHT["ink"])
    axes.set_ylim(len(names) + 0.7, 0.3)
    scale_rates(axes, "x", operations, roofs)
    axes.grid(axis="both")
    _draw_roofs(axes, roofs)
    axes.set_xlabel("GB/s of useful bytes")
    return chart


def _draw_roofs(axes: "Axes", roofs: Sequence[Roof]) -> None:
    """Roofs as upright lines, named above the rows, left to right."""
    for roof in roofs:
        axes.axvline(roof.gbps, color=LIGHT["ink"], linewidth=0.9)
    if roofs:
        place = axes.transAxes
        write(axes, 1, 1.0, name_roofs(roofs), ha="right", va="bottom", transform=place)


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
    figure.set_layout_engine("none")  # and stay
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
    """Numbers next to the marks, once each; marks that touch share one label."""
    labels: list[tuple[float, float, list[int]]] = []
    marks = {
        each: axes.transData.transform((each.call_bytes, each.rate.value)) for each in operations
    }
    taken = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in marks.values()]
    for each in {each.number: each for each in operations}.values():
        x, y = marks[each]
        near = [label for at_x, at_y, label in labels if abs(at_x - x) + abs(at_y - y) < _NEAR]
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
    """Where a label is: right of its mark, else left, below or above it, where it is free."""
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
