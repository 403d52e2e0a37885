"""Sizes, counts and durations as people write and read them.

Memory and token counts are binary (1K = 1,024; 1 GiB = 2^30 B); rates are decimal
(1 GB/s = 10^9 B/s), as hardware datasheets give them.
"""

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from dsv4kv.errors import ConfigError

UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Units of time that files are written in."""

_BINARY = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_QUANTITY = re.compile(
    r"^\s*([0-9][0-9_,]{0,30}(?:\.[0-9]+)?)\s*([KMGT]?)((?<=[KMGT])iB|B)?\s*$",
    re.IGNORECASE | re.ASCII,  # ASCII: the Kelvin sign is no K
)

_DURATION = re.compile(r"^\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smh]?)\s*$", re.I | re.ASCII)

MOST_POINTS = 4096  # points of one sweep, whose configurations are all held


def check_points(values: Iterable[int]) -> None:
    """Raise ``ConfigError`` where axes with these numbers of values have too many points."""
    if math.prod(values) > MOST_POINTS:
        raise ConfigError(
            f"--axis: more than {MOST_POINTS:,} points: leave values out, or sweep in parts."
        )


def parse_count(text: str) -> int:
    """Parse ``64``, ``128K``, ``1M``, ``1_000``; K and M are binary: ``1M`` is 1,048,576."""
    match = _QUANTITY.match(text)
    if match is None or match[3]:
        raise ConfigError(f"{text!r} is not a count: write 64, 128K or 1M (1K = 1,024).")
    return _whole(text, match[1], _BINARY[match[2].upper()])


def parse_bytes(text: str) -> int:
    """Parse ``512MiB`` (binary), ``80GB`` (decimal) or bytes, rounded down to whole bytes."""
    match = _QUANTITY.match(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size: write 512MiB, 141GiB, 80GB or bytes.")
    prefix = match[2].upper()
    decimal = match[3] is not None and match[3].upper() == "B" and prefix
    if not prefix:
        return _whole(text, match[1], 1)
    return int(_number(match[1]) * (_DECIMAL[prefix] if decimal else _BINARY[prefix]))


def parse_seconds(text: str) -> float:
    """Parse ``90``, ``90s``, ``5m`` or ``1h``: a duration in seconds."""
    match = _DURATION.match(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a duration: write 90s, 5m or 1h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2].lower()]


def _number(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace("_", ""))


def _whole(text: str, digits: str, factor: int) -> int:
    value = _number(digits) * factor
    if value.denominator != 1:
        raise ConfigError(f"{text!r} is not a whole number of units.")
    return int(value)


def format_bytes(count: float) -> str:
    """Binary size with three significant digits or more: ``584 B``, ``36.6 KiB``, ``3.44 GiB``."""
    size = Decimal(count)  # an integer of a file may be beyond every float
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} B" if unit == "B" else f"{_to_digits(size)} {unit}"
        size /= 1024
    return f"{_to_digits(size)} TiB"


def format_count(count: int) -> str:
    """A count as ``parse_count`` takes it: ``128K``, ``1M``; ``1,000`` where it is neither."""
    for size, unit in ((2**20, "M"), (2**10, "K")):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return f"{count:,}"


def cut(text: str, most: int) -> str:
    """A text of ``most`` characters at most, then ``…`` for the others."""
    return text if len(text) <= most else f"{text[:most]}…"


def counted(count: int, noun: str) -> str:
    """``1 step``, ``2,000 steps``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_duration(nanoseconds: float, digits: int = 3) -> str:
    """Duration in the unit that keeps one to three digits before the point.

    ``digits``: significant ones, if the duration is uncertain.
    """
    rounded = float(f"{nanoseconds:.{digits - 1}e}") if digits < 3 else nanoseconds
    for unit, size in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        if abs(rounded) < 999.5 * size:  # what rounds to 1,000 goes to the next unit
            return f"{_to_digits(Decimal(rounded / size), digits)} {unit}"
    return f"{_to_digits(Decimal(rounded / 1e9), digits)} s"


def _to_digits(value: Decimal, digits: int = 3) -> str:
    if value == 0:
        return "0"
    decimals = digits - (1 if abs(value) < 10 else 2 if abs(value) < 100 else 3)
    return f"{value:,.{max(0, decimals)}f}"
