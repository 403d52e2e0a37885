"""Several launches of one case: the median of their medians, and how far launches are apart."""

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from dsv4kv.measure.statistics import summarize
from dsv4kv.report.cells import ABSENT, add_estimates, new_table
from dsv4kv.report.quantities import Measured, by_quantity, over_launches
from dsv4kv.report.record import Launch

_MARKS = {"complete": ("✓", "green"), "incomplete": ("!", "yellow")}
_BAD = ("✗", "red")


def launches_table(measured: Sequence[Measured], title: str) -> Table:
    """A row per quantity: median of launch medians, rate, and range of the launches.

    The interval is over launches: with six or more of them, the 95 % interval of the median
    launch, whatever the samples of a launch say about each other.
    """
    groups = by_quantity(measured)
    medians = [[each.median_ns for each in group] for group in groups.values()]
    rates = [[rate.value for e in group if (rate := e.rate_gbps)] for group in groups.values()]
    table = new_table(title, "median of launch medians ± half of its 95 % interval over launches")
    for header in ("quantity", "layers"):
        table.add_column(header, no_wrap=True)
    for header in ("launches", "samples\neach"):
        table.add_column(header, justify="right")
    columns = (
        add_estimates(table, "median\nµs", [over_launches(values) for values in medians], 1e-3),
        add_estimates(table, "\nGB/s", [over_launches(values) for values in rates]),
    )
    table.add_column("slowest /\nfastest", justify="right")
    for (quantity, group), values, *cells in zip(groups.items(), medians, *columns, strict=True):
        table.add_row(
            f"{quantity.name} {quantity.temperature}".strip(),
            quantity.layer_type,
            f"{len(group)}",
            f"{summarize([len(each.samples_ns) for each in group]).median:,.0f}",
            *cells,
            f"{max(values) / min(values):.3f}" if min(values) else ABSENT,
        )
    return table


def processes_table(launches: Sequence[Launch]) -> Table:
    """A row per launch: when, how long, and what became of it."""
    table = new_table("Launches")
    table.add_column("launch", justify="right")
    table.add_column("started", no_wrap=True)
    table.add_column("s", justify="right")
    table.add_column("")
    table.add_column("")
    for launch in launches:
        table.add_row(
            f"{launch.launch}",
            launch.started_utc[:19] + "Z",
            f"{_duration_s(launch):.1f}",
            Text(*_MARKS.get(launch.status, _BAD)),
            launch.error or ("" if launch.status == "complete" else launch.status),
        )
    return table


def _duration_s(launch: Launch) -> float:
    start, end = (datetime.fromisoformat(text) for text in (launch.started_utc, launch.ended_utc))
    return (end - start).total_seconds()
