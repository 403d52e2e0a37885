"""Which marked range a moment on a thread lies in."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.measure.profilers.trace import NONE, Column, constant, no_rows

STEP = "step"
"""The range around a step, in ``DOMAIN``."""
DOMAIN = "dsv4kv"
"""NVTX domain of the toolkit's ranges."""
INPUTS = "inputs"
"""The range around what stands for the model: making a step's data, and counting its bytes."""
_OPEN = np.iinfo(np.int64).max
_ENDS, _BEGINS = 0, 1


@dataclass(frozen=True)
class Ranges:
    """Columns of marked ranges.

    Attributes:
        thread: Which thread they were marked on.
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

    @property
    def closed_ns(self) -> Column:
        """Ends; a range that was never closed lasts for ever."""
        return np.where(self.end_ns < self.start_ns, _OPEN, self.end_ns)


def no_ranges() -> Ranges:
    """Nothing was marked."""
    return Ranges(no_rows(), no_rows(), no_rows(), no_rows())


def enclosing(
    ranges: Ranges, is_step: NDArray[np.bool_], thread: Column, time_ns: Column
) -> tuple[Column, Column]:
    """The step and the phase that moments on threads lie in.

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
    starts, ends = ranges.start_ns[mine].tolist(), ranges.closed_ns[mine].tolist()
    numbers, steps = mine.tolist(), set(np.flatnonzero(is_step).tolist())
    begins = [
        (start, _BEGINS, -end, i) for start, end, i in zip(starts, ends, numbers, strict=True)
    ]
    moments = sorted(begins + [(end, _ENDS, 0, i) for end, i in zip(ends, numbers, strict=True)])
    open_ranges: list[int] = []
    inner, outer = [NONE], [NONE]
    for _, kind, _, i in moments:
        if kind == _BEGINS:
            open_ranges.append(i)
        else:
            open_ranges.remove(i)
        inner.append(open_ranges[-1] if open_ranges else NONE)
        outer.append(next((j for j in reversed(open_ranges) if j in steps), NONE))
    times = np.array([moment for moment, *_ in moments], dtype=np.int64)
    return times, np.array(inner, dtype=np.int64), np.array(outer, dtype=np.int64)
