"""Joins of columns."""

import numpy as np

from dsv4kv.measure.profilers.trace import NONE, Column, constant


def find(keys: Column, wanted: Column) -> Column:
    """Row of each wanted key among the keys, the first of equals; ``NONE`` where it is missing."""
    if not len(keys):
        return constant(len(wanted), NONE)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = order[at]
    return np.where(keys[found] == wanted, found, NONE)


def pick(column: Column, rows: Column) -> Column:
    """Values of rows; ``NONE`` for the row ``NONE``."""
    if not len(column):
        return constant(len(rows), NONE)
    return np.where(rows == NONE, NONE, column[rows])
