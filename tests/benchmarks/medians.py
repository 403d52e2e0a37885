"""What was measured so far, by group and contender."""

from collections.abc import Callable

from dsv4kv.units import format_duration

Measure = Callable[..., float | None]
Remark = Callable[[str], None]
PLAIN = "plain re-statement"

medians_ns: dict[str, dict[str, float]] = {}
remarks: list[str] = []


def lines() -> list[str]:
    """A line for each group: every contender's median, and how many times faster than plain."""
    told = []
    for group, medians in medians_ns.items():
        plain = medians.get(PLAIN)
        cells = []
        for name, median in medians.items():
            gain = f" ({plain / median:,.1f}x)" if plain and name != PLAIN else ""
            cells.append(f"{name} {format_duration(median)}{gain}")
        told.append(f"{group}: {', '.join(cells)}")
    return told + remarks
