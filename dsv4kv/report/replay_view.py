"""A replay on a terminal."""

from collections.abc import Iterator
from dataclasses import replace

from rich.console import RenderableType
from rich.table import Table

from dsv4kv.report.axes import axis_names, axis_text
from dsv4kv.report.facts import cache_facts, header
from dsv4kv.report.findings import Finding, judge_status
from dsv4kv.report.record import Case, RunRecord, Totals
from dsv4kv.report.replay_data import data_tables, judge_data
from dsv4kv.report.replay_losses import compare_rules, name_remedy
from dsv4kv.report.replay_record import ReplayResult, Reuse
from dsv4kv.report.replay_tables import (
    constants_table,
    memory_table,
    reuse_table,
    sweep_table,
    times_table,
)
from dsv4kv.units import format_bytes, format_duration

_TIGHT = 0.25  # from here on what was lost to checkpoints is worth a sentence


def tell_replay(record: RunRecord) -> Iterator[RenderableType]:
    """The facts, tables and findings of a replay."""
    if len(record.cases) == 1:
        return _tell_case(record, record.cases[0])
    return _tell_sweep(record)


def _tell_case(record: RunRecord, case: Case) -> Iterator[RenderableType]:
    yield from judge_status(case)
    yield header(record)
    if case.cache:
        yield cache_facts(case.cache)
    if case.replay and case.totals:
        yield ""
        yield reuse_table(case.replay.reuse)
        yield ""
        yield memory_table(case.replay)
        yield ""
        yield times_table(case.latencies, measured=case.replay.data is not None)
        yield ""
        yield constants_table(case.replay)
        yield from data_tables(case)
        yield ""
        yield replay_facts(case.replay, case.totals)
        yield ""
    yield from judge_replay(case)


def _tell_sweep(record: RunRecord) -> Iterator[RenderableType]:
    yield header(record)
    yield ""
    yield sweep_table(record.cases, axis_names(record.cases))
    yield ""
    yield from compare_rules(record.cases)
    yield from (finding for finding in list_replay_findings(record) if finding.level != "note")


def list_replay_findings(record: RunRecord) -> Iterator[Finding]:
    """Every case's findings; in a sweep each begins with what tells its case from the others."""
    for case in record.cases:
        prefix = f"{axis_text(case)}: " if case.axis else ""
        for finding in [*judge_status(case), *judge_replay(case)]:
            yield replace(finding, sentence=prefix + finding.sentence)


def judge_replay(case: Case) -> list[Finding]:
    """What a replay says about itself."""
    if case.replay is None or case.totals is None:
        return []
    found = [
        Finding("warning", f"rejected requests: {count:,}, {reason}")
        for reason, count in case.replay.rejected.items()
    ]
    if left := case.totals.blocks_left:
        found.append(Finding("bad", f"blocks still held at the end: {left:,}; the cache leaks"))
    found += judge_data(case)
    lost = case.replay.reuse.lost_tokens
    evicted, seen = lost.get("evicted_checkpoint", 0), case.replay.reuse.seen_tokens
    if seen and evicted > _TIGHT * seen:
        found.append(
            Finding(
                "warning",
                f"{evicted / seen:.0%} of what could be saved was lost because checkpoints were "
                "evicted while their blocks stayed; what gets it back: "
                + name_remedy(case.replay.reuse.rule, "evicted_checkpoint"),
            )
        )
    return found


def _tell_windows(reuse: Reuse) -> str:
    if reuse.rule != "ideal":
        return (
            f"where prefix.rule {reuse.rule} keeps them; {reuse.restored_checkpoints:,} prefixes "
            "resumed behind them"
        )
    return (
        f"{reuse.written_checkpoints:,} checkpoints written, "
        f"{reuse.evicted_checkpoints:,} evicted, {reuse.orphaned_checkpoints:,} gone with "
        f"their block; {format_bytes(reuse.kept_bytes)} kept; "
        f"{reuse.restored_checkpoints:,} prefixes brought back"
    )


def replay_facts(result: ReplayResult, totals: Totals) -> Table:
    """What happened, in a line each."""
    reuse, work = result.reuse, result.work
    rows = {
        "requests": (
            f"{totals.requests:,} served, {totals.peak_requests:,} in slots at the peak, "
            f"{reuse.resumed_requests:,} resumed behind a cached prefix"
        ),
        "blocks": (
            f"{reuse.found_blocks:,} of {reuse.prompt_blocks:,} whole blocks of prompts found, "
            f"{reuse.evicted_blocks:,} evicted"
        ),
        "windows": _tell_windows(reuse),
        "computed": (
            f"{reuse.computed_tokens:,} prompt tokens, {reuse.again_tokens:,} of them again "
            f"after an eviction; {totals.output_tokens:,} tokens out"
        ),
        "scheduling": (
            f"{result.pauses:,} pauses, {result.evictions:,} starts over, "
            f"{reuse.deferred_requests:,} requests waited for another one's prefix"
        ),
        "moved": (
            f"weights {format_bytes(work.weight_bytes)}, reading the cache "
            f"{format_bytes(work.gather_bytes)}, writing it {format_bytes(work.update_bytes)}, "
            f"checkpoints {format_bytes(work.copy_bytes)}"
        ),
        "lost room": (
            f"{format_bytes(result.rounding_bytes)} by rounding up to blocks at the peak, "
            f"{format_bytes(result.padding_bytes)} of padding in every block, "
            f"{format_bytes(result.remainder_bytes)} left over"
        ),
        "time": (
            f"{format_duration(totals.wall_ns)} in {totals.steps:,} steps, idle for "
            f"{format_duration(work.idle_ns)}"
        ),
    }
    if totals.drafted_tokens:
        kept = totals.drafted_tokens - totals.rolled_back_tokens
        rows["drafts"] = f"{totals.drafted_tokens:,} proposed, {kept:,} accepted"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=8, no_wrap=True)
    grid.add_column()
    for label, text in rows.items():
        grid.add_row(label, text)
    return grid
