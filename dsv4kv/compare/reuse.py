"""What two replays reused, beside each other."""

from collections.abc import Iterator
from dataclasses import dataclass

from dsv4kv.compare.side import Side
from dsv4kv.report.axes import axis_text
from dsv4kv.report.record import Case
from dsv4kv.report.replay_record import ReplayResult
from dsv4kv.units import format_bytes


@dataclass(frozen=True)
class ReuseRow:
    """Something that replays of both sides count.

    Attributes:
        axis: Swept settings of the case; empty without a sweep.
        name: What is counted.
        before: How much, as text with its unit.
        after: Likewise.
    """

    axis: str
    name: str
    before: str
    after: str


def list_reuse(before: Side, after: Side) -> list[ReuseRow]:
    """Rows of every case that both sides replayed; what is nothing on both is left out."""
    first, second = _replays(before), _replays(after)
    return [
        ReuseRow(axis, name, counted, others[name])
        for axis in first
        if axis in second
        for others in [dict(_count(second[axis]))]
        for name, counted in _count(first[axis])
        if name in others and (counted, others[name]) != ("0", "0")
    ]


def _replays(side: Side) -> dict[str, ReplayResult]:
    cases: Iterator[Case] = (case for record in side.records for case in record.cases)
    return {axis_text(case): case.replay for case in cases if case.replay is not None}


def _count(result: ReplayResult) -> Iterator[tuple[str, str]]:
    reuse, total = result.reuse, max(1, result.reuse.prompt_tokens)
    yield "prompt tokens saved", f"{100 * reuse.saved_tokens / total:.2f} %"
    lost = sum(reuse.lost_tokens.values())
    yield "prompt tokens lost", f"{100 * lost / total:.2f} %"
    yield "prompt tokens computed", f"{reuse.computed_tokens:,}"
    yield "blocks evicted", f"{reuse.evicted_blocks:,}"
    yield "windows and states kept", format_bytes(reuse.kept_bytes)
    yield "pauses", f"{result.pauses:,}"
    yield "starts over", f"{result.evictions:,}"
