"""Times of steps, and the idle time before each piece of work."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dsv4kv.measure.profilers.ranges import INPUTS
from dsv4kv.measure.profilers.trace import NONE, OP, RANGE, Column, Trace, Work, constant
from dsv4kv.report.profile_record import StepTimes


def on_cpu(work: Work) -> bool:
    """Whether the work is that of a CPU: a profile has one or the other."""
    return bool(len(work)) and bool(np.all(work.kind >= OP))


def find_gaps(trace: Trace) -> Column:
    """Idle time on its GPU before each piece of work, within its step; ``NONE`` for the first.

    Pieces that run beside others have no gap before them. All is one step where there are none.
    """
    work = trace.work
    gaps = constant(len(work), NONE)
    if not trace.has_clock or on_cpu(work):
        return gaps
    for rows in _groups(work, np.ones(len(work), dtype=np.bool_)):
        latest = np.maximum.accumulate(work.end_ns[rows])
        gaps[rows[1:]] = np.maximum(0, work.start_ns[rows[1:]] - latest[:-1])
    return gaps


def time_steps(trace: Trace, gaps: Column) -> StepTimes | None:
    """A row for each step on each GPU; None where the profile has no steps or no clock."""
    if not len(trace.steps_ns) or not trace.has_clock:
        return None
    if on_cpu(trace.work):
        return _cpu_steps(trace)
    return _gpu_steps(trace, gaps)


def _groups(work: Work, chosen: NDArray[np.bool_]) -> Iterator[Column]:
    """Rows of each step on each GPU, in order of their begins."""
    rows = np.flatnonzero(chosen)
    order = rows[np.lexsort((work.start_ns[rows], work.device[rows], work.step[rows]))]
    if not len(order):
        return
    changed = (np.diff(work.step[order]) != 0) | (np.diff(work.device[order]) != 0)
    yield from np.split(order, np.flatnonzero(changed) + 1)


def _gpu_steps(trace: Trace, gaps: Column) -> StepTimes | None:
    work, calls, steps = trace.work, trace.calls, len(trace.steps_ns)
    known = calls.step >= 0
    spent = np.bincount(calls.step[known], (calls.end_ns - calls.start_ns)[known], steps)
    made = np.bincount(calls.step[known], minlength=steps)
    rows = []
    for group in _groups(work, work.step >= 0):
        step = int(work.step[group[0]])
        begin, end = trace.steps_ns[step].tolist()
        span = int(work.end_ns[group].max() - work.start_ns[group[0]])
        gap = int(np.maximum(gaps[group], 0).sum())
        device, launches = int(work.device[group[0]]), int(made[step])
        launch = round(spent[step])
        rows.append((device, end - begin, span, span - gap, gap, launch, 0, launches, len(group)))
    return _columns(rows) if rows else None


def _cpu_steps(trace: Trace) -> StepTimes:
    """Time in torch operations, around them in marked operations, and outside of both."""
    work, steps = trace.work, len(trace.steps_ns)
    number = trace.names.index(INPUTS) if INPUTS in trace.names else NONE
    is_input = (work.phase == number) & (work.phase != NONE)
    inside = (work.step >= 0) & ~is_input

    def total(rows: NDArray[np.bool_]) -> Column:
        return np.bincount(work.step[rows], work.self_ns[rows], steps).astype(np.int64)

    def count(kind: int) -> Column:
        return np.bincount(work.step[inside & (work.kind == kind)], minlength=steps)

    host = trace.steps_ns[:, 1] - trace.steps_ns[:, 0]
    torch_ns, around_ns = total(inside & (work.kind == OP)), total(inside & (work.kind == RANGE))
    inputs_ns = total((work.step >= 0) & is_input)
    columns = (
        constant(steps, 0),
        host,
        host,
        torch_ns,
        host - torch_ns - around_ns - inputs_ns,
        around_ns,
        inputs_ns,
        count(RANGE),
        count(OP),
    )
    return _columns(list(zip(*(column.tolist() for column in columns), strict=True)))


def _columns(rows: Sequence[tuple[int, ...]]) -> StepTimes:
    names = list(StepTimes.model_fields)
    return StepTimes(**dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
