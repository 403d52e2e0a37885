"""Table cells: numbers with the digits their uncertainty allows, and one look for all tables."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dsv4kv.measure.statistics import Estimate, Summary


ABSENT = "–"
UNKNOWN_INTERVAL = "?"

_MOST_DIGITS = 5


def new_table(title: str, note: str = "") -> Table:
    """An empty table in the house's look; the note stands beside the title, dimmed."""
    heading = Text(title, style="bold")
    if note:
        heading.append(f"  {note}", style="not bold dim")
    return Table(
        title=heading,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )


def add_estimates(
    table: Table, header: str, estimates: Sequence["Estimate | None"], scale: float = 1.0
) -> list[str]:
    """Add a column for estimates and return its cells, their ± under each other.

    The cells are padded to one width and set flush left, as Rich strips the blanks on the right
    of a column that is flush right.
    """
    parts = [_split(estimate, scale) for estimate in estimates]
    left = max((len(value) for value, _ in parts), default=0)
    right = max((len(spread) for _, spread in parts), default=0)
    width = max(left + right, *map(len, header.split("\n")))
    table.add_column(Text(header, justify="right"), justify="left")
    return [(value.rjust(left) + spread.ljust(right)).rjust(width) for value, spread in parts]


def format_estimate(estimate: "Estimate | None", scale: float = 1.0) -> str:
    """``12.41 ± 0.05``: one or two digits of the uncertainty, rounded up; ``± ?`` if unknown."""
    return "".join(_split(estimate, scale))


def format_arms(summary: "Summary", scale: float = 1.0) -> str:
    """``12.41 -0.03/+0.11``: a median and how far its interval reaches to either side.

    Digits are those of ``format_estimate`` for the longer arm; `` ?`` where there is no interval.
    """
    value = summary.median * scale
    if summary.ci_low is None or summary.ci_high is None:
        return f"{format_number(value)} {UNKNOWN_INTERVAL}"
    arms = value - summary.ci_low * scale, summary.ci_high * scale - value
    decimals = _decimals(value, max(arms))
    below, above = (f"{_round_up(arm, decimals):,.{decimals}f}" for arm in arms)
    return f"{value:,.{decimals}f} -{below}/+{above}"


def format_number(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:,.{max(0, 2 - _exponent(value))}f}"


def _split(estimate: "Estimate | None", scale: float) -> tuple[str, str]:
    if estimate is None:
        return ABSENT, ""
    value = estimate.value * scale
    if estimate.half_width is None:
        return format_number(value), f" ± {UNKNOWN_INTERVAL}"
    spread = estimate.half_width * scale
    decimals = _decimals(value, spread)
    return f"{value:,.{decimals}f}", f" ± {_round_up(spread, decimals):,.{decimals}f}"


def _round_up(spread: float, decimals: int) -> float:
    """So that a measured uncertainty never reads as none."""
    unit = 10.0**decimals
    return math.ceil(spread * unit - 1e-9) / unit


def _decimals(value: float, spread: float) -> int:
    if not spread:
        return max(0, 2 - _exponent(value))
    wanted = -_exponent(spread) + (spread < 2 * 10.0 ** _exponent(spread))
    return max(0, min(wanted, _MOST_DIGITS - 1 - _exponent(value)))


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0
