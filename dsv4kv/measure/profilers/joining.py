"""Joins of columns."""

from collections.abc import Sequence

import numpy as np

from dsv4kv.measure.profilers.trace import NONE, Column, constant

CORRELATION_BITS = 32  # of a key; above them is what the correlation ids are unique in
_MIX = np.int64(0x9E3779B97F4A7C1 | 1)  # odd: multiplying by it loses nothing


def find(keys: Column, wanted: Column) -> Column:
    """Row of each wanted key among the keys, the first of equals; ``NONE`` where it is missing."""
    if not len(keys):
        return constant(len(wanted), NONE)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = order[at]
    return np.where((keys[found] == wanted) & (wanted != NONE), found, NONE)


def pick(column: Column, rows: Column) -> Column:
    """Values of rows; ``NONE`` for the row ``NONE``."""
    if not len(column):
        return constant(len(rows), NONE)
    return np.where(rows == NONE, NONE, column[rows])


def number_rows(columns: Sequence[Column]) -> tuple[Column, list[list[int]]]:
    """Number the rows of columns, equal ones alike: millions of launches have few shapes.

    Returns:
        int64[rows], and the rows that they number.
    """
    mixed = np.zeros(len(columns[0]), dtype=np.int64)
    with np.errstate(over="ignore"):
        for column in columns:
            mixed = (mixed ^ column) * _MIX
            mixed ^= mixed >> 29
    _, first, numbers = np.unique(mixed, return_index=True, return_inverse=True)
    rows = [[int(column[row]) for column in columns] for row in first.tolist()]
    return numbers.astype(np.int64), rows
