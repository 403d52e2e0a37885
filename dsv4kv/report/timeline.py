"""Picks one step out of a profile, piece by piece."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from dsv4kv.measure.profilers.classify import OTHER, Category, Rule
from dsv4kv.measure.profilers.trace import NONE, Column, Trace
from dsv4kv.report.profile_record import Timeline
from dsv4kv.report.step_times import on_cpu

MOST_PIECES = 20_000
HOST = "host"
_LAUNCH = "launch"
_NUMBERS = re.compile(r"(\d+)")

RuleOf = Callable[[int, int, int], Rule | None]
"""Rule of a piece of work by the numbers of its name, kind and phase."""
_Piece = tuple[str, Category, str, int, int]
"""Name, category, lane, begin and duration in ns."""


def pick_step(trace: Trace, rule_of: RuleOf) -> Timeline | None:
    """The step of median length, or all of a profile without steps; None without a clock."""
    work, calls = trace.work, trace.calls
    if not trace.has_clock or not len(work):
        return None
    step = _median_step(trace)
    rows = np.arange(len(work)) if step == NONE else np.flatnonzero(work.step == step)
    rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
    made = np.flatnonzero(calls.step == step)
    begins = [work.start_ns[rows[:1]], calls.start_ns[made]]
    first = int(np.concatenate(begins).min())
    launched = zip(calls.start_ns[made].tolist(), calls.end_ns[made].tolist(), strict=True)
    pieces = _pieces(trace, rows[:MOST_PIECES], first, rule_of)
    pieces += [(_LAUNCH, OTHER, HOST, begin - first, end - begin) for begin, end in launched]
    return _timeline(pieces[: 2 * MOST_PIECES], left_out=max(0, len(rows) - MOST_PIECES))


def _median_step(trace: Trace) -> int:
    """The step whose work takes a median time from begin to end; ``NONE`` without steps."""
    work, steps = trace.work, len(trace.steps_ns)
    rows = np.flatnonzero(work.step >= 0)
    if not len(rows):
        return NONE
    begin, end = np.full(steps, np.iinfo(np.int64).max), np.zeros(steps, dtype=np.int64)
    np.minimum.at(begin, work.step[rows], work.start_ns[rows])
    np.maximum.at(end, work.step[rows], work.end_ns[rows])
    there = np.unique(work.step[rows])
    order = there[np.argsort((end - begin)[there], kind="stable")]
    return int(order[len(order) // 2])


def _pieces(trace: Trace, rows: Column, first_ns: int, rule_of: RuleOf) -> list[_Piece]:
    work = trace.work
    place = "thread {stream}" if on_cpu(work) else "GPU {device} stream {stream}"
    columns = (
        work.name,
        work.kind,
        work.phase,
        work.device,
        work.stream,
        work.start_ns,
        work.end_ns,
    )
    pieces: list[_Piece] = []
    for name, kind, phase, device, stream, start, end in zip(
        *(column[rows].tolist() for column in columns), strict=True
    ):
        rule = rule_of(name, kind, phase)
        category = rule.category if rule else OTHER
        lane = place.format(device=device, stream=stream)
        pieces.append((trace.names[name], category, lane, start - first_ns, end - start))
    return pieces


def _by_numbers(lane: str) -> list[int | str]:
    """So that stream 7 stands before stream 13."""
    return [int(part) if part.isdecimal() else part for part in _NUMBERS.split(lane)]


def _timeline(pieces: Sequence[_Piece], left_out: int) -> Timeline:
    numbers: dict[tuple[str, Category], int] = {}
    lanes = sorted({lane for _, _, lane, _, _ in pieces}, key=_by_numbers)
    return Timeline(
        name=[numbers.setdefault((name, kind), len(numbers)) for name, kind, *_ in pieces],
        names=[name for name, _ in numbers],
        categories=[category for _, category in numbers],
        lanes=lanes,
        lane=[lanes.index(lane) for _, _, lane, _, _ in pieces],
        start_ns=[start for *_, start, _ in pieces],
        duration_ns=[duration for *_, duration in pieces],
        left_out=left_out,
    )
