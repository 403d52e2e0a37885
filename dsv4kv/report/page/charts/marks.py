"""Marks that several charts share: text in a role's colour, ticks, labels that make room."""

from collections.abc import Callable
from math import ceil, floor, log2, log10
from typing import TYPE_CHECKING, Any

from dsv4kv.report.page.colours import LIGHT, SHADES
from dsv4kv.report.page.figure import SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.text import Text

_MOST_TICKS = 5
_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def write(
    axes: "Axes", x: float, y: float, text: str, role: str = "ink", **changes: Any
) -> "Text":
    """Write a text at a place of the axes' data, small, in a role's colour."""
    look: dict[str, Any] = {"color": LIGHT[role], "fontsize": SMALL, "va": "center"}
    return axes.text(x, y, text, **look | changes)


def round_ticks(low: float, high: float) -> list[float]:
    """At most five round numbers of a logarithmic axis; those at its ends if none is round."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]
        if len(found) <= _MOST_TICKS:
            return found if len(found) > 1 else [low, high]
    return found[:: ceil(len(found) / _MOST_TICKS)]


def byte_ticks(low: float, high: float) -> list[float]:
    """At most five powers of two for an axis of bytes, and 0 where it begins there."""
    if low <= 0:
        step = 2.0 ** ceil(log2(max(high, 1) / _MOST_TICKS))
        return [step * n for n in range(int(high / step) + 1)]
    first, last = ceil(log2(low)), floor(log2(high))
    stride = max(1, ceil((last - first + 1) / _MOST_TICKS))
    return [2.0**power for power in range(first, last + 1, stride)]


def scale_log(
    axes: "Axes",
    which: str,
    low: float,
    high: float,
    ticks: Callable[[float, float], list[float]] = round_ticks,
) -> None:
    """Make an axis (``x`` or ``y``) logarithmic between two values, with a few round ticks."""
    from matplotlib.ticker import FixedLocator, NullLocator

    getattr(axes, f"set_{which}scale")("log")
    getattr(axes, f"set_{which}lim")(low, high)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(ticks(low, high)))
    axis.set_minor_locator(NullLocator())


def spread_shades(count: int) -> list[str]:
    """Colours of an ordered set: as far apart as the shades allow, the accent for one alone."""
    if count == 1:
        return [LIGHT["accent"]]
    step = (len(SHADES) - 1) / (min(count, len(SHADES)) - 1)
    return [LIGHT[SHADES[round(step * (number % len(SHADES)))]] for number in range(count)]


def show_linear_durations(axis: "Axis", low: float, high: float) -> None:
    """Label a linear axis, in ns, with as many digits as tell its ticks apart."""
    unit, size = next((u for u in _UNITS if high >= u[1]), _UNITS[-1])
    step = (high - low) / size / _MOST_TICKS
    decimals = max(0, ceil(-log10(step)) + 1) if step > 0 else 0  # a tick may be at 1.025

    def show(value: float, _: object) -> str:
        number = f"{value / size:,.{decimals}f}"
        return f"{number.rstrip('0').rstrip('.') if decimals else number} {unit}"

    axis.set_major_formatter(show)


def plain_number(value: float) -> str:
    """A tick's number: ``0.05``, ``20``, ``4,000``, ``1.5 M``."""
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value / 1e6:,.6g} M"


def fit(name: str, letters: int) -> str:
    """A name in so many letters: its end, which tells more than its beginning."""
    return name if len(name) <= letters else f"…{name[1 - letters :]}"
