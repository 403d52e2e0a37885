"""Which marked range a moment on a thread is in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.measure.profilers.trace import NONE, Column, constant

STEP = "step"
"""The range around a step, in ``DOMAIN``."""
DOMAIN = "dsv4kv"
"""NVTX domain of the toolkit's ranges."""
INPUTS = "inputs"
"""The range around synthetic inputs: making a step's data, and counting its bytes."""
THREAD_BITS = 24
"""Of a thread's number; its process is above them, as in the global ids of nsys."""
_OPEN = np.iinfo(np.int64).max
_ENDS, _BEGINS = 0, 1


@dataclass(frozen=True)
class Ranges:
    """Columns of marked ranges.

    Attributes:
        thread: Which thread they were marked on, and above ``THREAD_BITS`` of which process.
        start_ns: Begin.
        end_ns: End; ``NONE`` where it was never closed.
        name: Numbers of their names.
    """

    thread: Column
    start_ns: Column
    end_ns: Column
    name: Column

    def __len__(self) -> int:
        return len(self.name)

    def where(self, chosen: NDArray[np.bool_]) -> "Ranges":
        """Some of the rows."""
        columns = (self.thread, self.start_ns, self.end_ns, self.name)
        return Ranges(*(column[chosen] for column in columns))

    @property
    def closed_ns(self) -> Column:
        """Ends; a range that was never closed lasts for ever."""
        return np.where(self.end_ns < self.start_ns, _OPEN, self.end_ns)


def process_of(thread: Column) -> Column:
    """Processes of threads."""
    return thread >> THREAD_BITS


def fitting(names: Mapping[str, int], pattern: str) -> Column:
    """Numbers of the names that fit a pattern, in which ``*`` stands for anything."""
    parts = map(re.escape, pattern.split("*"))
    wanted = re.compile(".*".join(parts), re.DOTALL)
    fits = [number for name, number in names.items() if wanted.fullmatch(name)]
    return np.array(fits, dtype=np.int64)


def enclosing(
    ranges: Ranges, is_step: NDArray[np.bool_], thread: Column, time_ns: Column
) -> tuple[Column, Column]:
    """The step and the phase that moments on threads are in.

    Returns:
        Step as a number among the ranges that are steps, in their order, and phase as the name's
        number of the innermost range that is no step; ``NONE`` each where there is none.
    """
    step, phase = constant(len(thread), NONE), constant(len(thread), NONE)
    if not len(ranges):
        return step, phase
    steps_before = np.cumsum(is_step) - 1
    for one in np.unique(ranges.thread):
        here, mine = np.flatnonzero(thread == one), np.flatnonzero(ranges.thread == one)
        times, inner, outer = _sweep(ranges, mine, is_step)
        found = np.searchsorted(times, time_ns[here], side="right")
        inner, outer = inner[found], outer[found]
        step[here] = np.where(outer == NONE, NONE, steps_before[outer])
        named = (inner != NONE) & ~is_step[inner]
        phase[here] = np.where(named, ranges.name[inner], NONE)
    return step, phase


def _sweep(
    ranges: Ranges, mine: Column, is_step: NDArray[np.bool_]
) -> tuple[Column, Column, Column]:
    """Moments at which a thread's ranges change, the innermost from then on, and its step.

    The columns of ranges have an element more than the moments: the first is before all of them.
    """
    mine = mine[ranges.closed_ns[mine] > ranges.start_ns[mine]]  # else nothing is in it
    times = np.concatenate([ranges.start_ns[mine], ranges.closed_ns[mine]])
    kinds = np.repeat([_BEGINS, _ENDS], len(mine))
    # outer ranges open before inner ones that begin with them, and close after those
    latest_first = np.concatenate([-ranges.closed_ns[mine], -ranges.start_ns[mine]])
    order = np.lexsort((latest_first, kinds, times))
    numbers, begins = np.tile(mine, 2)[order].tolist(), (kinds[order] == _BEGINS).tolist()
    are_steps = np.tile(is_step[mine], 2)[order].tolist()
    open_ranges: list[int] = []
    open_steps: list[int] = []
    inner, outer = [NONE], [NONE]
    for i, begins_here, is_one in zip(numbers, begins, are_steps, strict=True):
        for stack in (open_ranges, open_steps) if is_one else (open_ranges,):
            _step_over(stack, i, begins_here)
        inner.append(open_ranges[-1] if open_ranges else NONE)
        outer.append(open_steps[-1] if open_steps else NONE)
    return times[order], np.array(inner, dtype=np.int64), np.array(outer, dtype=np.int64)


def _step_over(stack: list[int], number: int, begins: bool) -> None:
    """Open a range, or close it: the last one, or one below where ranges overlap."""
    if begins:
        stack.append(number)
    elif stack[-1] == number:
        stack.pop()
    else:
        stack.remove(number)
