"""What a run held over time, in bytes and as a table."""

from rich.table import Table

from dsv4kv.report.cells import ABSENT, new_table
from dsv4kv.report.memory_record import HeldUnits, MemorySeries
from dsv4kv.report.sparks import spark_line
from dsv4kv.units import format_bytes

_WIDTH = 18  # what 80 columns leave


def pool_sizes(series: MemorySeries) -> dict[str, list[int]]:
    """Bytes held in the pools of each name at every moment, layer types together."""
    held = {each.name: each.held for each in series.units}
    names = dict.fromkeys(pool.name for pool in series.pools)
    unit_bytes: dict[str, dict[str, int]] = {name: {} for name in names}
    for pool in series.pools:
        sizes = unit_bytes[pool.name]
        sizes[pool.unit] = sizes.get(pool.unit, 0) + pool.unit_bytes
    return {
        name: [
            sum(held[unit][moment] * size for unit, size in sizes.items())
            for moment in range(len(series.at_ns))
        ]
        for name, sizes in unit_bytes.items()
    }


def stride_text(series: MemorySeries) -> str:
    """What a point stands for."""
    if series.stride_steps == 1:
        return "a point per step"
    return f"a point per {series.stride_steps:,} steps, the fullest of them"


def held_table(series: MemorySeries) -> Table:
    """A row for each kind of unit: how many were held, and what that is in bytes."""
    table = new_table("Memory over time", stride_text(series))
    table.add_column("held", no_wrap=True)
    for header in ("of", "at first", "at most", "at last", "at most,\nbytes"):
        table.add_column(header, justify="right")
    table.add_column("over time", no_wrap=True)
    for each in series.units:
        table.add_row(*_row(each, series))
    return table


def share_percent(each: HeldUnits, count: int) -> float:
    """So many of the units, of all there are."""
    return count / each.units * 100 if each.units else 0.0


def _row(each: HeldUnits, series: MemorySeries) -> list[str]:
    most = max(each.held, default=0)
    unit_bytes = sum(pool.unit_bytes for pool in series.pools if pool.unit == each.name)
    first, last = (f"{each.held[end]:,}" if each.held else ABSENT for end in (0, -1))
    return [
        each.name,
        f"{each.units:,}",
        first,
        f"{most:,} ({share_percent(each, most):.1f} %)",
        last,
        format_bytes(most * unit_bytes) if unit_bytes else ABSENT,
        spark_line(each.held, _WIDTH),
    ]
