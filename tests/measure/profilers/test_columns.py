"""Columns that grow by rows, and numbers that are none."""

import pytest

from dsv4kv.measure.profilers.kineto import Columns, whole_number
from dsv4kv.measure.profilers.trace import NONE


@pytest.mark.parametrize("rows", [0, 1, 5_000])
def test_rows_come_back_as_columns_in_their_order(rows: int) -> None:
    columns = Columns(2)
    for row in range(rows):
        columns.add(row, -row)
    assert len(columns) == rows
    for _ in range(2):  # they can be asked for again
        first, second = columns.done()
        assert first.tolist() == list(range(rows))
        assert second.tolist() == [-row for row in range(rows)]


def test_what_is_no_number_is_none_and_leaves_its_neighbours_alone() -> None:
    columns = Columns(3)
    columns.add(1, None, 3)
    columns.add("stream 7", 2**64, 6)
    assert [column.tolist() for column in columns.done()] == [[1, NONE], [NONE, NONE], [3, 6]]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((7, 7), (7.9, 7), (True, 1), (-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1)),
        *((value, NONE) for value in (None, "7", [7], 2**63, float("nan"), float("inf"))),
    ],
)
def test_a_whole_number_fits_a_column(value: object, number: int) -> None:
    assert whole_number(value) == number
