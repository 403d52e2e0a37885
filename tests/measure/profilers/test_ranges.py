"""Which range a moment lies in."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.measure.profilers.steps import Ranges, enclosing
from dsv4kv.measure.profilers.trace import NONE

STEP, PHASE, INNER = 0, 1, 2
Row = tuple[int, int, int, int]
"""Thread, begin, end, name."""


def place(rows: list[Row], thread: int, *moments: int) -> list[tuple[int, int]]:
    """Step and phase of moments on a thread."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    ranges = Ranges(*(np.ascontiguousarray(column) for column in table.T))
    times = np.array(moments, dtype=np.int64)
    step, phase = enclosing(ranges, ranges.name == STEP, np.full(len(times), thread), times)
    return list(zip(step.tolist(), phase.tolist(), strict=True))


def test_ranges_that_begin_together_are_nested_by_their_length() -> None:
    rows = [(1, 0, 10, PHASE), (1, 0, 100, STEP)]
    assert place(rows, 1, 5, 50) == [(0, PHASE), (0, NONE)]


def test_a_range_that_was_never_closed_lasts_for_ever() -> None:
    assert place([(1, 10, NONE, STEP)], 1, 10**15) == [(0, NONE)]


def test_a_phase_may_outlast_its_step() -> None:
    rows = [(1, 0, 50, STEP), (1, 10, 80, PHASE)]
    assert place(rows, 1, 20, 60) == [(0, PHASE), (NONE, PHASE)]


@st.composite
def nested(draw: st.DrawFn) -> list[Row]:
    """Properly nested ranges on two threads, with distinct moments."""
    rows: list[Row] = []

    def fill(thread: int, begin: int, end: int, depth: int) -> None:
        at = begin + 1
        while at < end - 2 and draw(st.booleans()):
            last = draw(st.integers(at + 1, end - 1))
            rows.append((thread, at, last, draw(st.integers(0, 3))))
            if depth:
                fill(thread, at, last, depth - 1)
            at = last + 1

    for thread in (1, 2):
        fill(thread, 0, 60, 2)
    return rows


@given(nested(), st.integers(1, 2), st.integers(0, 60))
def test_any_nest_of_ranges_is_seen_as_by_looking_at_all_of_them(
    rows: list[Row], thread: int, moment: int
) -> None:
    around = [row for row in rows if row[0] == thread and row[1] <= moment < row[2]]
    around.sort(key=lambda row: row[1])
    steps = [row for row in rows if row[3] == STEP]
    step = next((steps.index(row) for row in reversed(around) if row[3] == STEP), NONE)
    phase = around[-1][3] if around and around[-1][3] != STEP else NONE
    assert place(rows, thread, moment) == [(step, phase)]
