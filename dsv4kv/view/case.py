"""The tables of one case: its cache, its operations, its latencies.

Rates are decimal: 1 GB/s is 10^9 B/s, or one byte per nanosecond.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from dsv4kv.measure.statistics import Estimate, divide, estimate_rate, summarize
from dsv4kv.record.quantities import Measured, by_quantity, latency_median, over_launches
from dsv4kv.record.schema import CacheSummary, Case, Latency, Launch, NotMeasured, Operation
from dsv4kv.record.yardstick import Yardstick, yardsticks
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import ABSENT, add_estimates, format_estimate, format_number, new_table
from dsv4kv.view.sparks import spark_bar, spark_shape

_NOTES = {
    "cpu": "reference CPU backend, not a performance claim",
    "cuda": "cold: every call on memory of its own, beyond L2; hot: one call again and again",
}

_INDEXER = "indexer_"
_NS_TO_US = 1e-3
_RATIO_TO_PERCENT = 100.0
_SHORT_NS = 10_000  # below, launching the kernels is much of an operation's time
_SHAPE_WIDTH, _BAR_WIDTH = 10, 12  # what 80 columns leave
_TOLD_PERCENTILES = (90.0, 99.0)


def backend_note(case: Case) -> str:
    """Which operations ran, and what to make of their times."""
    throttled = any(e.throttled for e in case.operations) or any(p.throttled for p in case.peaks)
    return _backend_words(case) + ("; of all calls, those not throttled" if throttled else "")


def _backend_words(case: Case) -> str:
    if not case.foreign:
        return _NOTES.get(case.backend, case.backend)
    version = f" {case.backend_version}" if case.backend_version else ""
    others = _NOTES[case.device]
    return f"{', '.join(case.foreign)} from {case.backend}{version}; all others: {others}"


def cache_table(cache: CacheSummary) -> Table:
    """Pools: planned and allocated bytes of all layers together."""
    table = new_table("Cache")
    for header in ("pool", "layers"):
        table.add_column(header, no_wrap=True)
    for header in ("units", "bytes/unit", "predicted", "allocated"):
        table.add_column(header, justify="right")
    table.add_column("of all", no_wrap=True)
    table.add_column("")
    whole = sum(pool.allocated_bytes for pool in cache.pools) or 1
    for pool in cache.pools:
        equal = pool.predicted_bytes == pool.allocated_bytes
        table.add_row(
            pool.name,
            f"{pool.layer_type} × {pool.layers}" if pool.layer_type != "all" else "all",
            f"{pool.units:,}",
            f"{pool.unit_bytes:,}",
            format_bytes(pool.predicted_bytes),
            format_bytes(pool.allocated_bytes),
            spark_bar(pool.allocated_bytes / whole, _BAR_WIDTH),
            Text("✓", "green") if equal else Text("✗ differs", "red"),
        )
    return table


def operations_table(case: Case) -> Table:
    """Operations: work, median time of a call, rate, and the rate against this run's yardstick.

    The rate is that of ``estimate_rate``: all useful bytes over all time, the yardstick's
    likewise, so that the percentage compares like with like.
    """
    operations, known = case.operations, yardsticks(case)
    held_against = known[0].rate if known else None
    missing: list[None] = [None] * len(case.not_measured)
    times = [*(_median(each.samples_ns) for each in operations), *missing]
    rates = [*(estimate_rate(each.bytes, each.samples_ns) for each in operations), *missing]
    shares = [divide(rate, held_against) if rate and held_against else None for rate in rates]
    rows = [_describe(each) for each in operations]
    rows += [_describe_missing(each) for each in case.not_measured]
    for yardstick in known:
        rows.append(_describe_yardstick(yardstick))
        times.append(_median(yardstick.samples_ns))
        rates.append(yardstick.rate)
        shares.append(None)
    table = new_table("Operations", backend_note(case))
    for header in ("operation", "layers"):
        table.add_column(header, no_wrap=True)
    for header in ("calls", "entries", "useful\nbytes"):
        table.add_column(header, justify="right")
    for header, cells in _optional_columns(case, times):
        table.add_column(header, justify="right")
        for row, cell in zip_longest(rows, cells):  # what has no figure, and yardsticks
            row.append(ABSENT if cell is None else cell)
    name = known[0].name if known else "memcpy"
    columns = (
        add_estimates(table, "median\nµs/call", times, _NS_TO_US),
        add_estimates(table, "\nGB/s", rates),
        add_estimates(table, f"% of\n{name}", shares, _RATIO_TO_PERCENT),
    )
    last = len(operations) + len(missing)
    for index, (row, *cells) in enumerate(zip(rows, *columns, strict=True), start=1):
        table.add_row(*row, *cells, end_section=index == last)
    return table


def _optional_columns(
    case: Case, times: Sequence[Estimate | None]
) -> Iterator[tuple[str, list[str]]]:
    """Headers and cells of what only some runs know of their operations."""
    operations = case.operations
    if any(each.temperature for each in operations):
        sizes = [each.distinct_bytes for each in operations]
        yield "bytes till\nreused", [ABSENT if s is None else format_bytes(s) for s in sizes]
    short = [time is not None and time.value < _SHORT_NS for time in times[: len(operations)]]
    if case.empty_kernel_ns and any(short):
        floor = format_number(summarize(case.empty_kernel_ns).estimate.value * _NS_TO_US)
        yield "empty\nkernel µs", [floor if each else ABSENT for each in short]


def latencies_table(latencies: Sequence[Latency]) -> Table:
    """Bookkeeping and steps: medians and the tail, in µs."""
    table = new_table("Latencies")
    table.add_column("action", no_wrap=True)
    table.add_column("samples", justify="right")
    medians = [_median(latency.samples_ns) for latency in latencies]
    cells = add_estimates(table, "median µs", medians, _NS_TO_US)
    for header in ("p90 µs", "p99 µs", "max µs", "outliers"):
        table.add_column(header, justify="right")
    table.add_column("shape", no_wrap=True)
    for latency, median in zip(latencies, cells, strict=True):
        shape = spark_shape(latency.samples_ns, _SHAPE_WIDTH)
        count = f"{len(latency.samples_ns):,}"
        table.add_row(latency.name, count, median, *_tail(latency), shape)
    return table


def _median(samples_ns: Sequence[int]) -> Estimate | None:
    return summarize(samples_ns).estimate if samples_ns else None


def _describe(operation: Operation) -> list[str]:
    name = operation.name.removeprefix(_INDEXER)
    indexer = name != operation.name
    return [
        f"{name} {operation.temperature}" if operation.temperature else name,
        f"{operation.layer_type} idx" if indexer else operation.layer_type,
        _count(len(operation.samples_ns), operation.throttled),
        f"{sum(operation.entries):,}",
        format_bytes(sum(operation.bytes)),
    ]


def _count(kept: int, throttled: int) -> str:
    return f"{kept:,} of {kept + throttled:,}" if throttled else f"{kept:,}"


def _describe_missing(each: NotMeasured) -> list[str]:
    name, layers, *_ = _describe(
        Operation(**each.model_dump(exclude={"why"}), samples_ns=[], entries=[], bytes=[])
    )
    return [f"{name}\n  not measured: {each.why}", layers, ABSENT, ABSENT, ABSENT]


def _describe_yardstick(yardstick: Yardstick) -> list[str]:
    calls = len(yardstick.samples_ns)
    count = _count(calls, yardstick.throttled)
    return [yardstick.name, "", count, ABSENT, format_bytes(calls * yardstick.bytes)]


def _tail(latency: Latency) -> list[str]:
    if not latency.samples_ns:
        return [ABSENT] * 4
    summary = summarize(latency.samples_ns)
    told = [summary.percentiles.get(percentile) for percentile in _TOLD_PERCENTILES]
    values = [*told, summary.maximum]
    micros = [ABSENT if v is None else format_number(v * _NS_TO_US) for v in values]
    return [*micros, f"{summary.outliers:,}"]


_WAYS = {"decode_graph": "captured graph", "decode_eager": "launched one by one"}


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
