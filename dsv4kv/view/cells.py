"""Numbers with the digits their uncertainty allows."""

import math
from typing import TYPE_CHECKING, Any

from dsv4kv.runs.quantities import setting_text
from dsv4kv.units import format_bytes
from dsv4kv.view.table import ABSENT, Number

if TYPE_CHECKING:
    from dsv4kv.measure.statistics import Estimate, Summary

UNKNOWN_INTERVAL = "?"

_MOST_DIGITS = 5


def measured(estimate: "Estimate | None", scale: float = 1.0) -> Number:
    """A cell of ``format_estimate``: the value, and its interval next to it."""
    return Number(*_split(estimate, scale))


def format_estimate(estimate: "Estimate | None", scale: float = 1.0) -> str:
    """``12.41 ± 0.05``: one or two digits of the uncertainty, rounded up; ``± ?`` if unknown.

    Where one arm is over twice the other it is ``12.41 -0.01/+0.05``.
    """
    return " ".join(filter(None, _split(estimate, scale)))


def measured_arms(summary: "Summary", scale: float = 1.0) -> Number:
    """``12.41 -0.03/+0.11``: a median and how far its interval reaches to either side.

    Digits are those of ``format_estimate`` for the longer arm; ``?`` where there is no interval.
    """
    value = summary.median * scale
    if summary.ci_low is None or summary.ci_high is None:
        return Number(format_number(value), UNKNOWN_INTERVAL)
    arms = value - summary.ci_low * scale, summary.ci_high * scale - value
    decimals = _decimals(value, max(arms))
    return Number(f"{value:,.{decimals}f}", _both(arms, decimals))


def show_setting(path: str, value: Any) -> str:
    """A swept setting as people write it: sizes with their unit, all others as in YAML."""
    is_size = path.endswith("_bytes") and isinstance(value, int)
    return format_bytes(value) if is_size else setting_text(value)


def format_number(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:,.{max(0, 2 - _exponent(value))}f}"


def format_clocked(value: float, factor: float | None) -> str:
    """A time of a model: two significant digits where it is right within a factor."""
    return format_number(value) if factor is None else f"{value:,.{max(0, 1 - _exponent(value))}f}"


def format_factor(factor: float | None) -> str:
    """``× ÷ 1.4``: what the times of a model are right within."""
    return ABSENT if factor is None else f"× ÷ {factor:g}"


def _split(estimate: "Estimate | None", scale: float) -> tuple[str, str]:
    if estimate is None:
        return ABSENT, ""
    value = estimate.value * scale
    if estimate.half_width is None:
        return format_number(value), f"± {UNKNOWN_INTERVAL}"
    spread = estimate.half_width * scale
    decimals = _decimals(value, spread)
    interval = f"± {_round_up(spread, decimals)}"
    if estimate.arms and estimate.is_lopsided:
        interval = _both((estimate.arms[0] * scale, estimate.arms[1] * scale), decimals)
    return f"{value:,.{decimals}f}", interval


def _both(arms: tuple[float, float], decimals: int) -> str:
    below, above = (_round_up(arm, decimals) for arm in arms)
    return f"-{below}/+{above}"


def _round_up(spread: float, decimals: int) -> str:
    """So that a measured uncertainty never reads as none."""
    unit = 10.0**decimals
    return f"{math.ceil(spread * unit - 1e-9) / unit:,.{decimals}f}"


def _decimals(value: float, spread: float) -> int:
    if not spread:
        return max(0, 2 - _exponent(value))
    wanted = -_exponent(spread) + (spread < 2 * 10.0 ** _exponent(spread))
    return max(0, min(wanted, _MOST_DIGITS - 1 - _exponent(value)))


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0
