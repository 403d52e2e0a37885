"""Launch shapes, each kept once: millions of launches have a handful of them."""

from collections.abc import Sequence

import numpy as np

from dsv4kv.measure.profilers.trace import NONE, Column, LaunchShape

_MIX = np.int64(0x9E3779B97F4A7C1 | 1)  # odd: multiplying by it loses nothing


def number_shapes(columns: Sequence[Column]) -> tuple[Column, list[LaunchShape]]:
    """Number the rows of grid x, y, z, block x, y, z, registers, static and dynamic shared bytes.

    Returns:
        int64[rows], into the shapes.
    """
    mixed = np.zeros(len(columns[0]), dtype=np.int64)
    with np.errstate(over="ignore"):
        for column in columns:
            mixed = (mixed ^ column) * _MIX
            mixed ^= mixed >> 29
    _, first, numbers = np.unique(mixed, return_index=True, return_inverse=True)
    return numbers.astype(np.int64), [_shape(columns, i) for i in first.tolist()]


def _shape(columns: Sequence[Column], row: int) -> LaunchShape:
    values = [int(column[row]) for column in columns]
    static, dynamic = (max(0, size) for size in values[7:])
    return LaunchShape(
        grid=_triple(values[:3]),
        block=_triple(values[3:6]),
        registers=None if values[6] == NONE else values[6],
        shared_bytes=None if values[7] == values[8] == NONE else static + dynamic,
    )


def _triple(values: Sequence[int]) -> tuple[int, int, int] | None:
    x, y, z = (max(value, 1) for value in values)
    return None if values[0] == NONE else (x, y, z)
