"""Columns that grow by rows."""

from array import array
from typing import Any

import numpy as np

from dsv4kv.measure.profilers.trace import NONE, Column

_LIMIT = 1 << 63
_AT_ONCE = 1 << 14


class Columns:
    """Rows of integers, kept as columns; what is no such number is ``NONE``."""

    def __init__(self, width: int) -> None:
        self._width, self._flat = width, array("q")
        self._fresh: list[Any] = []

    def __len__(self) -> int:
        return (len(self._flat) + len(self._fresh)) // self._width

    def add(self, *row: Any) -> None:
        """Add a row of ``width`` values."""
        self._fresh.extend(row)
        if len(self._fresh) > _AT_ONCE:
            self._settle()

    def done(self) -> list[Column]:
        """int64[rows] for each column."""
        self._settle()
        rows = np.frombuffer(self._flat, dtype=np.int64).reshape(-1, self._width)
        return [rows[:, i].copy() for i in range(self._width)]

    def _settle(self) -> None:
        try:
            self._flat.extend(array("q", self._fresh))  # nearly always
        except (TypeError, OverflowError):
            self._flat.extend(map(whole_number, self._fresh))
        self._fresh.clear()


def whole_number(value: object) -> int:
    """The value as an int64, ``NONE`` where it is none."""
    try:
        number = int(value) if isinstance(value, int | float) else NONE
    except (ValueError, OverflowError):  # not a number, or infinite
        return NONE
    return number if -_LIMIT <= number < _LIMIT else NONE
