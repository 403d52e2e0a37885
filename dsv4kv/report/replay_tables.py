"""The tables of a replay: what was reused and lost, memory, times, and the model behind them."""

from collections.abc import Sequence

from rich.table import Table

from dsv4kv.measure.statistics import Summary, summarize
from dsv4kv.report.cells import ABSENT, format_number, new_table
from dsv4kv.report.record import Case, Latency
from dsv4kv.report.replay_losses import name_loss, name_remedy
from dsv4kv.report.replay_record import ReplayResult, Reuse
from dsv4kv.units import format_bytes

_PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_TIMES = {
    "queueing": "until a slot",
    "ttft": "until the first token",
    "tpot": "a further token",
    "latency": "until the last token",
}
_NS_TO_MS = 1e-6


def reuse_table(reuse: Reuse) -> Table:
    """Every token of the prompts: computed for the first time, saved, or lost, and to what."""
    rule = f"prefix.rule {reuse.rule}, " if reuse.rule != "ideal" else ""
    note = f"{rule}prompts share blocks of {reuse.shared_tokens:,} tokens"
    table = new_table("Prompt tokens", note)
    table.add_column("what became of them", no_wrap=True)
    table.add_column("tokens", justify="right")
    table.add_column("of all", justify="right")
    table.add_column("what gets them back")
    new = reuse.prompt_tokens - reuse.seen_tokens
    rows = [("seen for the first time", new, ""), ("saved", reuse.saved_tokens, "")]
    lost = sorted(reuse.lost_tokens.items(), key=lambda item: -item[1])
    rows += [
        (f"lost: {name_loss(reason)}", count, name_remedy(reuse.rule, reason))
        for reason, count in lost
    ]
    for what, count, remedy in rows:
        share = f"{count / reuse.prompt_tokens:.2%}" if reuse.prompt_tokens else ABSENT
        table.add_row(what, f"{count:,}", share, remedy)
    return table


def memory_table(result: ReplayResult) -> Table:
    """The parts of the memory, and the most of each that was in use."""
    table = new_table("Memory", "blocks in use are those of requests; the others are cached")
    table.add_column("part", no_wrap=True)
    for header in ("units", "bytes/unit", "bytes", "most in use"):
        table.add_column(header, justify="right")
    for pool in result.pools:
        units = "as wanted" if pool.units is None else f"{pool.units:,}"
        size = ABSENT if pool.units is None else format_bytes(pool.units * pool.unit_bytes)
        table.add_row(pool.name, units, f"{pool.unit_bytes:,}", size, f"{pool.peak_units:,}")
    return table


def times_table(latencies: Sequence[Latency], *, measured: bool = False) -> Table:
    """Percentiles of times; only those that enough requests carry.

    ``measured``: the cache's part was measured, the rest is the model's.
    """
    note = f"{_whose(measured)}, in ms; a percentile needs ten requests beyond it"
    table = new_table("Times", note)
    table.add_column("time", no_wrap=True)
    table.add_column("requests", justify="right")
    for header in ("p50", "p90", "p99", "p99.9", "max"):
        table.add_column(header, justify="right")
    for latency in (each for each in latencies if each.samples_ns):
        summary = summarize(latency.samples_ns)
        name = f"{latency.name}  {_TIMES.get(latency.name, '')}".rstrip()
        table.add_row(name, f"{summary.n:,}", *_percentiles(summary))
    return table


def constants_table(result: ReplayResult) -> Table:
    """Everything the times depend on."""
    table = new_table("Model of a step", "overhead + bytes / bandwidth + arithmetic / rate")
    table.add_column("constant", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("source")
    for constant in result.constants:
        value = f"{constant.value:,.6g} {constant.unit}".strip()
        table.add_row(constant.name, value, constant.source)
    return table


def sweep_table(cases: Sequence[Case], names: dict[str, str]) -> Table:
    """A row for every case: what was saved, and what requests waited.

    ``names`` are the swept settings by dotted path, as they are to be shown.
    """
    measured = any(case.replay and case.replay.data for case in cases)
    table = new_table("Replays", f"times {_whose(measured)}, in ms")
    for name in names.values():
        table.add_column(name.replace("_", "\n"), justify="right", style="bold")
    for header in (
        "saved\ntokens",
        "found\nblocks",
        "lost to\nblocks",
        "lost to\ncheckpoints",
        "kept",
        "pauses",
        "ttft\np50",
        "ttft\np99",
        "tpot\np50",
    ):
        table.add_column(header, justify="right")
    for case in cases:
        settings = [str(case.axis.get(path, ABSENT)) for path in names]
        table.add_row(*settings, *_sweep_cells(case))
    return table


def _whose(measured: bool) -> str:
    return "measured for the cache, of the model for the rest" if measured else "of the model"


def _sweep_cells(case: Case) -> list[str]:
    if case.replay is None:
        return [case.status] + [ABSENT] * 8
    reuse = case.replay.reuse
    lost = reuse.lost_tokens
    checkpoints = lost.get("evicted_checkpoint", 0) + lost.get("no_checkpoint", 0)
    checkpoints += lost.get("replay", 0)
    return [
        _share(reuse.saved_tokens, reuse.prompt_tokens),
        _share(reuse.found_blocks, reuse.prompt_blocks),
        _share(lost.get("evicted_block", 0), reuse.prompt_tokens),
        _share(checkpoints, reuse.prompt_tokens),
        format_bytes(reuse.kept_bytes) if reuse.rule == "ideal" else ABSENT,
        f"{case.replay.pauses:,}",
        _time(case, "ttft", 50.0),
        _time(case, "ttft", 99.0),
        _time(case, "tpot", 50.0),
    ]


def _percentiles(summary: Summary) -> list[str]:
    found = [summary.percentiles.get(percentile) for percentile in _PERCENTILES]
    return [_milliseconds(value) for value in [*found, summary.maximum]]


def _time(case: Case, name: str, percentile: float) -> str:
    for latency in case.latencies:
        if latency.name == name and latency.samples_ns:
            return _milliseconds(summarize(latency.samples_ns).percentiles.get(percentile))
    return ABSENT


def _milliseconds(nanoseconds: float | None) -> str:
    return ABSENT if nanoseconds is None else format_number(nanoseconds * _NS_TO_MS)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ABSENT
