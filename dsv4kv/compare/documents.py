"""A comparison for programs (JSON) and for pull requests (Markdown)."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dsv4kv.compare.comparison import Comparison, Row
from dsv4kv.compare.reuse import list_reuse
from dsv4kv.compare.side import Side, count_launches
from dsv4kv.compare.words import (
    INTERVAL,
    conclude,
    describe_change,
    describe_interval,
    describe_side,
    explain,
)
from dsv4kv.measure.statistics import summarize
from dsv4kv.measure.verdict import Judgement, Launches, Verdict
from dsv4kv.report.cells import format_number
from dsv4kv.report.exports import escape_pipes

_HEADER = (
    f"| quantity | before, µs | after, µs | change | {INTERVAL}, % | verdict |",
    "|---|---:|---:|---:|---:|---|",
)


def to_document(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    """Everything, as JSON knows it; times in ns, one per launch, changes as ratios."""
    return {
        "verdict": verdict,
        "floor": asdict(comparison.floor),
        "before": _side(comparison.before),
        "after": _side(comparison.after),
        "geometric_mean": _judgement(comparison.overall) if comparison.overall else None,
        "rows": [_row(row) for row in comparison.rows],
        "reuse": [asdict(row) for row in list_reuse(comparison.before, comparison.after)],
        "missing": list(comparison.missing),
        "losses": list(comparison.losses),
        "differences": [asdict(difference) for difference in comparison.differences],
        "forced": comparison.forced,
    }


def to_markdown(comparison: Comparison, verdict: Verdict) -> str:
    """Changed rows in a table, all others folded away."""
    return "\n".join(_markdown(comparison, verdict)) + "\n"


def _side(side: Side) -> dict[str, Any]:
    runs = [record.run_id for record in side.records]
    return {"name": side.name, "runs": runs, "launches": count_launches(side)}


def _row(row: Row) -> dict[str, Any]:
    return {
        **asdict(row.quantity),
        "before_ns": list(row.before.values),
        "after_ns": list(row.after.values),
        **_judgement(row.judgement),
    }


def _judgement(judgement: Judgement) -> dict[str, Any]:
    return {
        "ratio": judgement.ratio,
        "interval": judgement.interval,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
    }


def _markdown(comparison: Comparison, verdict: Verdict) -> Iterator[str]:
    yield f"**dsv4kv {conclude(comparison, verdict)}**"
    yield ""
    for side in (comparison.before, comparison.after):
        yield f"- {describe_side(side)}"
    if comparison.forced:
        yield "- **the sides are not alike and are compared all the same (`--force`)**"
    yield from (f"- {difference}" for difference in comparison.differences)
    yield from (f"- {told}" for told in (*comparison.losses, *comparison.missing))
    changes = (Verdict.SLOWER, Verdict.FASTER)
    changed = [row for row in comparison.rows if row.judgement.verdict in changes]
    others = [row for row in comparison.rows if row.judgement.verdict not in changes]
    if changed:
        yield from ("", *_HEADER, *map(_line, changed))
    if others:
        summary = f"{len(others)} rows without a change that is one"
        yield from ("", f"<details><summary>{summary}</summary>", "")
        yield from (*_HEADER, *map(_line, others), "", "</details>")
    if rows := list_reuse(comparison.before, comparison.after):
        yield from ("", "| reuse | before | after |", "|---|---:|---:|")
        for each in rows:
            name = f"{each.axis}: {each.name}" if each.axis else each.name
            yield f"| {name} | {each.before} | {each.after} |"
    yield from ("", f"<sub>{explain(comparison)}</sub>")


def _line(row: Row) -> str:
    name = f"{row.quantity.axis}: {row.quantity}" if row.quantity.axis else str(row.quantity)
    verdict = f"{row.judgement.verdict} {row.judgement.reason}".strip()
    cells: Sequence[str] = (
        name,
        _micros(row.before),
        _micros(row.after),
        describe_change(row.judgement),
        describe_interval(row.judgement),
        verdict,
    )
    return "| " + " | ".join(map(escape_pipes, cells)) + " |"


def _micros(launches: Launches) -> str:
    return format_number(summarize(launches.values).median / 1e3)
