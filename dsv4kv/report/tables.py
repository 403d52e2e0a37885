"""The tables of one case: its cache, its operations, its latencies.

Rates are decimal: 1 GB/s is 10^9 B/s, or one byte per nanosecond.
"""

from collections.abc import Sequence
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from dsv4kv.measure.statistics import Estimate, divide, estimate_rate, summarize
from dsv4kv.report.cells import ABSENT, add_estimates, format_number, new_table
from dsv4kv.report.record import CacheSummary, Case, Latency, Operation
from dsv4kv.report.sparks import spark_bar, spark_shape
from dsv4kv.report.yardstick import Yardstick, yardsticks
from dsv4kv.units import format_bytes

_NOTES = {
    "cpu": "reference CPU backend, not a performance claim",
    "cuda": "cold: every call on pages of its own; hot: one call again and again",
}

_INDEXER = "indexer_"
_NS_TO_US = 1e-3
_RATIO_TO_PERCENT = 100.0
_SHAPE_WIDTH, _BAR_WIDTH = 10, 12  # what 80 columns leave
_TOLD_PERCENTILES = (90.0, 99.0)


def backend_note(case: Case) -> str:
    """Which operations ran, and what to make of their times."""
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
    times = [_median(operation.samples_ns) for operation in operations]
    rates = [estimate_rate(operation.bytes, operation.samples_ns) for operation in operations]
    shares = [divide(rate, held_against) if rate and held_against else None for rate in rates]
    rows = [_describe(operation) for operation in operations]
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
    if any(operation.temperature for operation in operations):
        table.add_column("bytes till\nreused", justify="right")
        distinct = [operation.distinct_bytes for operation in operations]
        for row, size in zip_longest(rows, distinct):  # yardsticks have none
            row.append(ABSENT if size is None else format_bytes(size))
    name = known[0].name if known else "memcpy"
    columns = (
        add_estimates(table, "median\nµs/call", times, _NS_TO_US),
        add_estimates(table, "\nGB/s", rates),
        add_estimates(table, f"% of\n{name}", shares, _RATIO_TO_PERCENT),
    )
    for index, (row, *cells) in enumerate(zip(rows, *columns, strict=True), start=1):
        table.add_row(*row, *cells, end_section=index == len(operations))
    return table


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
        f"{len(operation.samples_ns):,}",
        f"{sum(operation.entries):,}",
        format_bytes(sum(operation.bytes)),
    ]


def _describe_yardstick(yardstick: Yardstick) -> list[str]:
    calls = len(yardstick.samples_ns)
    return [yardstick.name, "", f"{calls:,}", ABSENT, format_bytes(calls * yardstick.bytes)]


def _tail(latency: Latency) -> list[str]:
    if not latency.samples_ns:
        return [ABSENT] * 4
    summary = summarize(latency.samples_ns)
    told = [summary.percentiles.get(percentile) for percentile in _TOLD_PERCENTILES]
    values = [*told, summary.maximum]
    micros = [ABSENT if v is None else format_number(v * _NS_TO_US) for v in values]
    return [*micros, f"{summary.outliers:,}"]
