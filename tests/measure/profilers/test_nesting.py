"""Time that operations take themselves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.measure.profilers.kineto import self_times

Row = tuple[int, int, int]
"""Thread, begin, end."""


def own(*rows: Row) -> list[int]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    found: list[int] = self_times(table[:, 0], table[:, 1], table[:, 2]).tolist()
    return found


def test_an_operation_takes_itself_what_those_inside_leave() -> None:
    assert own((1, 0, 100), (1, 10, 40), (1, 20, 30), (1, 50, 60)) == [60, 20, 10, 10]


def test_the_order_of_rows_does_not_matter() -> None:
    assert own((1, 20, 30), (1, 0, 100), (1, 10, 40)) == [10, 70, 20]


def test_operations_of_other_threads_take_nothing_away() -> None:
    assert own((1, 0, 100), (2, 10, 40)) == [100, 30]


def test_operations_one_after_the_other_are_not_inside() -> None:
    assert own((1, 0, 50), (1, 50, 80)) == [50, 30]


def test_one_that_outlasts_its_outer_takes_only_what_they_share() -> None:
    assert own((1, 0, 50), (1, 40, 80)) == [40, 40]


def test_no_operations_take_no_time() -> None:
    assert own() == []


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 5), st.integers(1, 40)), max_size=8))
def test_own_times_of_nested_operations_add_up_to_the_outermost(
    drawn: list[tuple[int, int, int]],
) -> None:
    # every next one lies inside the last of its thread, or begins anew behind all of them
    rows: list[Row] = []
    last: dict[int, tuple[int, int]] = {}
    outermost = 0
    for thread, skip, length in drawn:
        begin, end = last.get(thread, (0, 0))
        if end - begin > skip + 1:
            inner = (begin + skip, min(end, begin + skip + length))
        else:
            clear = max([row[2] for row in rows] + [0])
            inner = (clear, clear + length)
            outermost += length
        rows.append((thread, *inner))
        last[thread] = inner
    assert sum(own(*rows)) == outermost
