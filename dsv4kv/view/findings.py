"""What a run found out about itself, as sentences: stopped, failed, unequal, leaking, or fine."""

from dsv4kv.runs.schema import Case, Pool
from dsv4kv.units import format_bytes
from dsv4kv.view.table import Finding

_MOST_FAILURES = 20


def judge_status(case: Case) -> list[Finding]:
    """Whether the case ran to its end; empty if it did."""
    if case.status == "failed":
        return [Finding("bad", f"failed: {case.error}")]
    if case.status == "skipped":
        return [Finding("warning", f"skipped: {case.error}")]
    if case.status == "incomplete":
        return [Finding("warning", "incomplete: stopped before the end; numbers cover what ran")]
    return []


def judge_results(case: Case) -> list[Finding]:
    """Rejected requests, leaked blocks, memory against the plan, outputs against the reference."""
    gathers = case.gathers_because
    asked_less = [Finding("note", f"decode steps gather: {gathers}")] if gathers else []
    return [*_judge_totals(case), *_judge_memory(case), *_judge_outputs(case), *asked_less]


def _judge_totals(case: Case) -> list[Finding]:
    if case.totals is None:
        return []
    found = []
    if rejected := case.totals.rejected:
        limit = f"{case.cache.max_context_tokens:,} tokens" if case.cache else "the cache"
        found.append(
            Finding("warning", f"rejected requests: {rejected:,}, longer than {limit} or the pool")
        )
    if left := case.totals.blocks_left:
        found.append(Finding("bad", f"blocks still held at the end: {left:,}; the cache leaks"))
    return found


def _judge_memory(case: Case) -> list[Finding]:
    pools = case.cache.pools if case.cache else []
    if not pools:
        return []
    predicted = format_bytes(sum(pool.predicted_bytes for pool in pools))
    allocated = format_bytes(sum(pool.allocated_bytes for pool in pools))
    unequal = [pool for pool in pools if pool.predicted_bytes != pool.allocated_bytes]
    if not unequal:
        return [Finding("good", f"{allocated} allocated, as predicted to the byte")]
    return [
        Finding(
            "bad",
            f"{allocated} allocated, {predicted} predicted: {', '.join(map(_gap, unequal))}",
        )
    ]


def _gap(pool: Pool) -> str:
    gap = pool.allocated_bytes - pool.predicted_bytes
    return f"{pool.name} of {pool.layer_type} layers {gap:+,} B"


def _judge_outputs(case: Case) -> list[Finding]:
    verification = case.verification
    if failures := verification.failures:
        more = len(failures) - _MOST_FAILURES
        return [
            Finding(
                "bad",
                f"{len(failures):,} of {verification.checks:,} outputs differ from the reference:",
            ),
            *(Finding("bad", failure) for failure in failures[:_MOST_FAILURES]),
            *([Finding("bad", f"and {more:,} more, in the record")] if more > 0 else []),
        ]
    if case.status in ("failed", "skipped"):
        return []
    if not verification.checks:
        return [Finding("note", "no output was compared with the reference")]
    counts = ", ".join(f"{name} {count:,}" for name, count in verification.by_operation.items())
    return [Finding("good", f"{verification.checks:,} outputs equal the reference: {counts}")]
