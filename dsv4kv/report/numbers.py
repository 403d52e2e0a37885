"""The numbers that stand for a case when it is one of many."""

from dsv4kv.measure.statistics import Estimate, estimate_rate, summarize
from dsv4kv.report.record import Case


def latency_median(case: Case, name: str) -> Estimate | None:
    """Median of a latency in ns; None where it was not measured."""
    for latency in case.latencies:
        if latency.name == name and latency.samples_ns:
            return summarize(latency.samples_ns).estimate
    return None


def gather_rate(case: Case) -> Estimate | None:
    """GB/s of all gather operations together, of the cold ones where others were measured too."""
    gathers = [
        each
        for each in case.operations
        if each.name.startswith("gather") and each.temperature in (None, "cold")
    ]
    return estimate_rate(
        [size for each in gathers for size in each.bytes],
        [time for each in gathers for time in each.samples_ns],
    )


def saved_percent(case: Case) -> float | None:
    """Prompt tokens that a replay did not compute, of all; None for anything else."""
    if case.replay is None or not case.replay.reuse.prompt_tokens:
        return None
    return case.replay.reuse.saved_tokens / case.replay.reuse.prompt_tokens * 100


def allocated_bytes(case: Case) -> int | None:
    """Bytes of all pools; None where none was allocated."""
    pools = case.cache.pools if case.cache else []
    return sum(pool.allocated_bytes for pool in pools) if pools else None
