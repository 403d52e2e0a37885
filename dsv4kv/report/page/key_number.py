"""A number to remember, large on the first screen."""

from dataclasses import dataclass

from dsv4kv.measure.statistics import Estimate
from dsv4kv.report.cells import format_estimate

_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


@dataclass(frozen=True)
class KeyNumber:
    """``8.12``, ``± 0.30``, ``ms``, and what to hold it against."""

    label: str
    value: str
    spread: str
    unit: str
    note: str


def measured_number(
    label: str, estimate: Estimate, unit: str, note: str, scale: float = 1.0
) -> KeyNumber:
    """A number with its interval."""
    value, sign, spread = format_estimate(estimate, scale).partition(" ± ")
    return KeyNumber(label, value, f"± {spread}" if sign else "", unit, note)


def measured_duration(label: str, time: Estimate, note: str) -> KeyNumber:
    """A duration, given in ns, in the largest unit that keeps it at 1 or above."""
    unit, size = next((each for each in _UNITS if time.value >= each[1]), _UNITS[-1])
    return measured_number(label, time, unit, note, 1 / size)
