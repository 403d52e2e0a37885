"""Operations' rates, and what they are held against: what both of their charts show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsv4kv.measure.statistics import Estimate, estimate_rate
from dsv4kv.report.cells import format_number
from dsv4kv.report.page.charts.marks import plain_number, scale_log
from dsv4kv.report.record import Case
from dsv4kv.units import format_bytes, format_duration

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
    """A rate to hold others against, in GB/s."""

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
    """Names and rates from the lowest to the highest, as the lines stand."""
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
