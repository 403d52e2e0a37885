"""Which kernels took the time of a profile."""

from dsv4kv.report.kernels import titles
from dsv4kv.report.page.charts.bars import Bar, draw_bars
from dsv4kv.report.page.figure import Chart
from dsv4kv.report.profile_record import KernelTable
from dsv4kv.units import format_duration

_MOST = 14
_LONGEST_NAME = 28


def kernels_chart(table: KernelTable) -> Chart:
    """A bar for each of the longest kernels, and one for all others together."""
    rows = sorted(table.kernels, key=lambda row: -row.total_ns)
    whole = sum(row.total_ns for row in rows) or 1
    times = [(name, row.total_ns) for name, row in zip(titles(rows), rows, strict=True)][:_MOST]
    if rest := rows[_MOST:]:
        times.append((f"{len(rest):,} others", sum(row.total_ns for row in rest)))
    shares = [f"{time / whole * 100:.0f} %" for _, time in times]
    bars = [
        Bar(_cut(name), time, f"{format_duration(time)}, {share}")
        for (name, time), share in zip(times, shares, strict=True)
    ]
    told = ", ".join(f"{name} {share}" for (name, _), share in zip(times, shares, strict=True))
    figure = draw_bars(bars, room=0.5)
    return Chart("kernels", "Time of each kernel, all calls", f"{told}.", figure)


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
