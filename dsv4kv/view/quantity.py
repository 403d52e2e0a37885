"""Quantities as text, with the digits that their uncertainty allows."""

import json
import math
from typing import TYPE_CHECKING, Any

from dsv4kv.units import format_bytes, format_count
from dsv4kv.view.table import ABSENT, Number, text_of

if TYPE_CHECKING:
    from dsv4kv.runs.statistics import Estimate

_MAX_DIGITS = 5


def quantity(value: "Estimate | float | None", scale: float = 1.0) -> Number:
    """A cell of ``value * scale``; ``–`` for None.

    * an estimate: one or two digits of its 95 % interval, rounded
      up: ``12.41 ± 0.05``; ``12.41 -0.01/+0.05`` where one arm is over twice the other;
      ``12.4 ± ?`` where it is unknown (below six samples); ``<0.05`` where it reaches 0; no
      interval where it is exact
    * an integer without a scale: all digits
    * another number: three significant digits, or all before the point
    """
    if value is None:
        return Number(ABSENT)
    if isinstance(value, int) and scale == 1.0:
        return Number(f"{value:,}")
    if isinstance(value, int | float):
        return Number(format_number(value * scale))
    return _estimate(value, scale)


def _estimate(value: "Estimate", scale: float) -> Number:
    middle = value.value * scale
    if value.half_width is None:
        return Number(format_number(middle), "± ?")
    if value.half_width <= abs(value.value) * 1e-12:
        return Number(format_number(middle))
    spread = value.half_width * scale
    digits = -_exponent(spread) + (spread < 2 * 10.0 ** _exponent(spread))
    decimals = max(0, min(digits, _MAX_DIGITS - 1 - _exponent(middle)))
    interval = f"± {_round_up(spread, decimals)}"
    arms = value.arms if value.arms and value.is_lopsided else (value.half_width,) * 2
    below, above = (_round_up(arm * scale, decimals) for arm in arms)
    if middle > 0 and float(f"{middle:.{decimals}f}") <= float(below.replace(",", "")):
        return Number(f"<{_round_up(middle + arms[1] * scale, decimals)}")
    if value.arms and value.is_lopsided:
        interval = f"-{below}/+{above}"
    return Number(f"{middle:,.{decimals}f}", interval)


def us(nanoseconds: "Estimate | float | None") -> Number:
    """Nanoseconds as µs, without the unit."""
    return quantity(nanoseconds, 1e-3)


def ms(nanoseconds: "Estimate | float | None") -> Number:
    """Nanoseconds as ms, without the unit."""
    return quantity(nanoseconds, 1e-6)


def percent(share: "Estimate | float | None") -> Number:
    """A share of 1 as per cent to a tenth, without the sign; an estimate with its interval."""
    if isinstance(share, int | float):
        return Number(f"{share * 100:.1f}")
    return quantity(share, 100.0)


def size(count: float | None) -> Number:
    """Bytes with their binary unit."""
    return Number(ABSENT if count is None else format_bytes(count))


def format_quantity(value: "Estimate | float | None", scale: float = 1.0) -> str:
    """``12.41 ± 0.05``: the text of ``quantity``."""
    return text_of(quantity(value, scale))


def format_number(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:,.{max(0, 2 - _exponent(value))}f}"


def format_clocked(value: float, factor: float | None) -> str:
    """A time of a model: two significant digits where it is right within a factor."""
    return format_number(value) if factor is None else f"{value:,.{max(0, 1 - _exponent(value))}f}"


def format_factor(factor: float | None) -> str:
    """``÷1.4 … ×1.4``: the 90 % error of a model's times."""
    return ABSENT if factor is None else f"÷{factor:g} … ×{factor:g}"


def share(part: int, whole: int, digits: int = 1) -> str:
    """``12.3%``: a part of a whole; ``–`` of nothing."""
    return f"{part / whole:.{digits}%}" if whole else ABSENT


def format_setting(path: str, value: Any) -> str:
    """A swept setting as people write it: sizes with their unit, contexts as ``128K``."""
    if path == "workload.context" and isinstance(value, int):
        return format_count(value)
    if path.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    return value if isinstance(value, str) else json.dumps(value)


def _round_up(spread: float, decimals: int) -> str:
    unit = 10.0**decimals
    return f"{math.ceil(spread * unit - 1e-9) / unit:,.{decimals}f}"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def round_up(value: float) -> float:
    """The next value of two digits; one that is nearly out of range, itself."""
    if not 1e-300 < value < 1e300:
        return value
    digits = 1 - math.floor(math.log10(value))
    return float(math.ceil(value * 10.0**digits) / 10.0**digits)
