"""The tables of one case: its cache, its operations, its latencies.

Rates are decimal: 1 GB/s is 10^9 B/s, or one byte per nanosecond.
"""

from collections.abc import Sequence
from datetime import datetime

from dsv4kv.measure.statistics import Estimate, divide, estimate_rate, summarize
from dsv4kv.runs.quantities import (
    Measured,
    Yardstick,
    by_quantity,
    latency_median,
    over_launches,
    yardsticks,
)
from dsv4kv.runs.schema import CacheSummary, Case, Latency, Launch, NotMeasured, Operation
from dsv4kv.units import format_bytes
from dsv4kv.view.cells import format_estimate, format_number, measured
from dsv4kv.view.table import (
    ABSENT,
    Bar,
    Histogram,
    Level,
    Mark,
    Number,
    Row,
    Table,
    names,
    numbers,
    prose,
)

_NOTES = {
    "cpu": "reference CPU backend, not a performance claim",
    "cuda": "cold: every call on memory of its own, beyond L2; hot: one call again and again",
}

_GOOD, _DIFFERS = Mark("good"), Mark("bad", "differs")
_INDEXER = "indexer_"
_NS_TO_US = 1e-3
_RATIO_TO_PERCENT = 100.0
_SHORT_NS = 10_000  # below, launching the kernels is much of an operation's time
_SHOWN_PERCENTILES = (90.0, 99.0)


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
    whole = sum(pool.allocated_bytes for pool in cache.pools) or 1
    return Table(
        "Cache",
        [
            *names("pool", "layers"),
            *numbers("units", "bytes/unit", "predicted", "allocated"),
            *names("of all", "as predicted"),
        ],
        [
            (
                pool.name,
                f"{pool.layer_type} × {pool.layers}" if pool.layer_type != "all" else "all",
                f"{pool.units:,}",
                f"{pool.unit_bytes:,}",
                format_bytes(pool.predicted_bytes),
                format_bytes(pool.allocated_bytes),
                Bar(pool.allocated_bytes / whole),
                _GOOD if pool.predicted_bytes == pool.allocated_bytes else _DIFFERS,
            )
            for pool in cache.pools
        ],
        keys=2,
    )


def operations_table(case: Case) -> Table:
    """Operations: work, median time of a call, rate, and the rate against this run's yardstick.

    The rate is that of ``estimate_rate``: all useful bytes over all time, the yardstick's
    likewise, so that the percentage compares like with like.
    """
    known = yardsticks(case)
    reused = any(each.temperature for each in case.operations)
    floor = _floor(case)
    rows: list[Row] = []
    for each in case.operations:
        time, rate = _median(each.samples_ns), estimate_rate(each.bytes, each.samples_ns)
        distinct = ABSENT if each.distinct_bytes is None else format_bytes(each.distinct_bytes)
        short = time is not None and time.value < _SHORT_NS
        share = divide(rate, known[0].rate) if rate and known and known[0].rate else None
        rows.append(
            [
                *_describe(each),
                *([distinct] if reused else []),
                *([floor if short else ABSENT] if floor else []),
                *_speed(time, rate, share),
            ]
        )
    optional = [
        *(["bytes till reused"] if reused else []),
        *(["empty kernel µs"] if floor else []),
    ]
    missing: list[Row] = [
        [_short_name(each), _layers(each), *[ABSENT] * (6 + len(optional))]
        for each in case.not_measured
    ]
    yardstick = known[0].name if known else "memcpy"
    return Table(
        "Operations",
        [
            *names("operation", "layers"),
            *numbers("calls", "entries", minor=True),
            *numbers("useful bytes"),
            *numbers(*optional, minor=True),
            *numbers("median µs/call", "GB/s", f"% of {yardstick}"),
        ],
        [*rows, *missing],
        note=backend_note(case),
        footer=[_describe_yardstick(each, len(optional)) for each in known],
        caption="\n".join(
            f"not measured: {_short_name(each)} {_layers(each)}, {each.why}"
            for each in case.not_measured
        ),
        keys=2,
    )


def _floor(case: Case) -> str:
    """Time of an empty kernel in µs, where some operation is nearly as short; else empty."""
    times = (_median(each.samples_ns) for each in case.operations)
    if not case.empty_kernel_ns or not any(t is not None and t.value < _SHORT_NS for t in times):
        return ""
    return format_number(summarize(case.empty_kernel_ns).estimate.value * _NS_TO_US)


def _speed(time: Estimate | None, rate: Estimate | None, share: Estimate | None) -> list[Number]:
    return [measured(time, _NS_TO_US), measured(rate), measured(share, _RATIO_TO_PERCENT)]


def latencies_table(latencies: Sequence[Latency]) -> Table:
    """Bookkeeping and steps: medians and the tail, in µs."""
    return Table(
        "Latencies",
        [
            *names("action"),
            *numbers("samples", "median µs", "p90 µs", "p99 µs", "max µs"),
            *numbers("outliers", minor=True),
            *names("shape", minor=True),
        ],
        [
            (
                latency.name,
                f"{len(latency.samples_ns):,}",
                measured(_median(latency.samples_ns), _NS_TO_US),
                *_tail(latency),
                Histogram(latency.samples_ns),
            )
            for latency in latencies
        ],
    )


def _median(samples_ns: Sequence[int]) -> Estimate | None:
    return summarize(samples_ns).estimate if samples_ns else None


def _describe(operation: Operation) -> list[str]:
    return [
        _short_name(operation),
        _layers(operation),
        _count(len(operation.samples_ns), operation.throttled),
        f"{sum(operation.entries):,}",
        format_bytes(sum(operation.bytes)),
    ]


def _short_name(operation: Operation | NotMeasured) -> str:
    name = operation.name.removeprefix(_INDEXER)
    return f"{name} {operation.temperature}" if operation.temperature else name


def _layers(operation: Operation | NotMeasured) -> str:
    indexer = operation.name.startswith(_INDEXER)
    return f"{operation.layer_type} idx" if indexer else operation.layer_type


def _count(kept: int, throttled: int) -> str:
    return f"{kept:,} of {kept + throttled:,}" if throttled else f"{kept:,}"


def _describe_yardstick(yardstick: Yardstick, optional: int) -> Row:
    calls = len(yardstick.samples_ns)
    return [
        *(yardstick.name, "", _count(calls, yardstick.throttled), ABSENT),
        *(format_bytes(calls * yardstick.bytes), *[ABSENT] * optional),
        *_speed(_median(yardstick.samples_ns), yardstick.rate, None),
    ]


def _tail(latency: Latency) -> list[str]:
    if not latency.samples_ns:
        return [ABSENT] * 4
    summary = summarize(latency.samples_ns)
    percentiles = [summary.percentiles.get(percentile) for percentile in _SHOWN_PERCENTILES]
    values = [*percentiles, summary.maximum]
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
    return Table(
        "Decode steps",
        [*names("step"), *numbers("samples", "GPU, median µs", "host until launched, median µs")],
        [
            (
                _WAYS[way],
                f"{len(found[f'{way}_device']):,}",
                measured(time, _NS_TO_US),
                measured(latency_median(case, f"{way}_host"), _NS_TO_US),
            )
            for way, time in zip(ways, device, strict=True)
        ],
        note=_compare(ways, device),
    )


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


_MARKS: dict[str, Level] = {"complete": "good", "incomplete": "warning"}


def launches_table(found: Sequence[Measured], title: str) -> Table:
    """A row per quantity: median of launch medians, rate, and range of the launches.

    The interval is over launches: with six or more of them, the 95 % interval of the median
    launch, whatever the samples of a launch say about each other.
    """
    rows = []
    for quantity, group in by_quantity(found).items():
        medians = [each.median_ns for each in group]
        rates = [rate.value for each in group if (rate := each.rate_gbps)]
        samples = summarize([len(each.samples_ns) for each in group]).median
        rows.append(
            (
                f"{quantity.name} {quantity.temperature}".strip(),
                quantity.layer_type,
                f"{len(group)}",
                f"{samples:,.0f}",
                measured(over_launches(medians), _NS_TO_US),
                measured(over_launches(rates)),
                f"{max(medians) / min(medians):.3f}" if min(medians) else ABSENT,
            )
        )
    return Table(
        title,
        [
            *names("quantity", "layers"),
            *numbers("launches", "samples each", minor=True),
            *numbers("median µs", "GB/s", "slowest / fastest"),
        ],
        rows,
        note="median of launch medians with its 95 % interval over launches",
        keys=2,
    )


def processes_table(launches: Sequence[Launch]) -> Table:
    """A row per launch: when, how long, and what became of it."""
    return Table(
        "Launches",
        [*numbers("launch"), *names("started"), *numbers("s"), *names("state"), *prose("why")],
        [
            (
                f"{launch.launch}",
                launch.started_utc[:19] + "Z",
                f"{_duration_s(launch):.1f}",
                Mark(_MARKS.get(launch.status, "bad")),
                launch.error or ("" if launch.status == "complete" else launch.status),
            )
            for launch in launches
        ],
    )


def _duration_s(launch: Launch) -> float:
    start, end = (datetime.fromisoformat(text) for text in (launch.started_utc, launch.ended_utc))
    return (end - start).total_seconds()
