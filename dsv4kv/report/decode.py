"""Decode steps on a GPU: as a graph and launched one by one, there and on the host."""

from rich.table import Table

from dsv4kv.measure.statistics import Estimate, divide, summarize
from dsv4kv.report.cells import ABSENT, add_estimates, format_estimate, new_table
from dsv4kv.report.numbers import latency_median
from dsv4kv.report.record import Case

_WAYS = {"decode_graph": "captured graph", "decode_eager": "launched one by one"}
_NS_TO_US = 1e-3


def decode_table(case: Case) -> Table | None:
    """Time of a decode step by the way it was launched; None where no GPU ran one."""
    found = {latency.name: latency.samples_ns for latency in case.latencies if latency.samples_ns}
    ways = [way for way in _WAYS if f"{way}_device" in found]
    if not ways:
        return None
    device = [summarize(found[f"{way}_device"]).estimate for way in ways]
    host = [latency_median(case, f"{way}_host") for way in ways]
    table = new_table("Decode steps", _compare(ways, device))
    table.add_column("step", no_wrap=True)
    table.add_column("samples", justify="right")
    columns = (
        add_estimates(table, "GPU,\nmedian µs", list(device), _NS_TO_US),
        add_estimates(table, "host until launched,\nmedian µs", host, _NS_TO_US),
    )
    for way, *cells in zip(ways, *columns, strict=True):
        table.add_row(_WAYS[way], f"{len(found[f'{way}_device']):,}", *cells)
    return table


def graph_device_time(case: Case) -> Estimate | None:
    """Median time of a decode step on the GPU in ns, as a graph if it ran as one."""
    found = {latency.name: latency.samples_ns for latency in case.latencies if latency.samples_ns}
    for way in _WAYS:
        if samples := found.get(f"{way}_device"):
            return summarize(samples).estimate
    return None


def _compare(ways: list[str], times: list[Estimate]) -> str:
    if len(ways) < 2:
        return ""
    graph, eager = times
    ratio = divide(eager, graph)
    return f"a graph takes 1 / {format_estimate(ratio) if ratio else ABSENT} of the time"
