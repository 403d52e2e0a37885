"""What a profiler saw, whichever it was: columns of work, and the steps it belongs to.

Times are integer nanoseconds on the profiler's clock. Columns keep a million rows in memory that
a million objects would not fit in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dsv4kv.files import whole_text

Column = NDArray[np.int64]

KINDS: Final = ("kernel", "memcpy", "memset", "graph", "op", "range")
"""Work of a GPU; a graph traced as a whole; an operation or a marked range on a CPU."""
KERNEL, MEMCPY, MEMSET, GRAPH, OP, RANGE = range(len(KINDS))
NONE: Final = -1
"""Stands for an absent index, size or count in a column."""
STEP: Final = "step"
"""The range around a step, in ``DOMAIN``."""
DOMAIN: Final = "dsv4kv"
"""NVTX domain of the toolkit's ranges."""
INPUTS: Final = "inputs"
"""The range around synthetic inputs: making a step's data, and counting its bytes."""


@dataclass(frozen=True)
class LaunchShape:
    """How a kernel was launched; None where the profile does not say."""

    grid: tuple[int, int, int] | None  # blocks (x, y, z)
    block: tuple[int, int, int] | None  # threads of a block (x, y, z)
    registers: int | None
    shared_bytes: int | None  # shared memory of a block, static and dynamic


@dataclass(frozen=True)
class Work:
    """Columns of equal length, one row for each piece of work."""

    name: Column  # into ``Trace.names``
    kind: Column  # into ``KINDS``
    start_ns: Column
    end_ns: Column
    self_ns: Column  # time that no piece of work inside accounts for; all of it on a GPU
    device: Column  # number of the GPU; 0 on a CPU
    stream: Column  # stream, or thread on a CPU
    shape: Column  # into ``Trace.shapes``, or ``NONE``
    node: Column  # graph node, 0 outside graphs
    step: Column  # into the steps of the trace, or ``NONE``
    phase: Column  # into ``Trace.names``: the innermost range inside the step, or ``NONE``
    bytes: Column  # bytes moved, as counted by the profiler, or ``NONE``

    def __len__(self) -> int:
        return len(self.name)

    def where(self, chosen: NDArray[np.bool_]) -> "Work":
        """Some of the rows."""
        return Work(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})


def make_work(
    name: Column, kind: Column, start_ns: Column, end_ns: Column, **known: Column
) -> Work:
    """Work with defaults for the columns that are unknown."""
    absent, zero = constant(len(name), NONE), constant(len(name), 0)
    others = dict.fromkeys(("shape", "step", "phase", "bytes"), absent)
    others |= dict.fromkeys(("device", "stream", "node"), zero)
    others["self_ns"] = end_ns - start_ns
    return Work(name, kind, start_ns, end_ns, **others | known)


@dataclass(frozen=True)
class Calls:
    """Columns of host calls that launched work: begin, end, and the step or ``NONE``."""

    start_ns: Column
    end_ns: Column
    step: Column


def constant(rows: int, value: int) -> Column:
    """A column of one value."""
    return np.full(rows, value, dtype=np.int64)


@dataclass(frozen=True)
class Trace:
    """One profile."""

    tool: str  # ``nsys``, ``ncu`` or ``kineto``
    names: list[str]  # kernels, operations and ranges
    work: Work
    shapes: list[LaunchShape]
    steps_ns: Column  # int64[S, 2], begin and end of every step on the host
    calls: Calls = field(default_factory=lambda: Calls(*(constant(0, 0) for _ in range(3))))
    devices: dict[int, str] = field(default_factory=dict)  # names of GPUs by number
    has_clock: bool = True  # whether begins are real: ncu runs every kernel alone
    version: str | None = None  # version of the tool or of its file format
    warnings: list[str] = field(default_factory=list)  # what spoils the numbers, worst first
    notes: list[str] = field(default_factory=list)  # what else to know


_LONGEST = 1 << 14  # CUTLASS has names of thousands


class Names:
    """Numbers names as they come, the first ``_LONGEST`` characters of each."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The name's number; a new one for a new name."""
        number = self.known.get(name[:_LONGEST])
        if number is not None:
            return number
        return self.known.setdefault(whole_text(name[:_LONGEST]), len(self.known))

    def listed(self) -> list[str]:
        """All names by number."""
        return list(self.known)


CORRELATION_BITS = 32  # of a key; above them is what the correlation ids are unique in


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
    """Number the rows of columns, equal ones alike: int64[rows], and the rows they number."""
    factors = np.random.default_rng(0).integers(1 << 62, size=len(columns))
    mixed = np.stack(columns, axis=1) @ factors  # unique(axis=0) would take seconds for a million
    _, first, numbers = np.unique(mixed, return_index=True, return_inverse=True)
    rows = [[int(column[row]) for column in columns] for row in first.tolist()]
    return numbers.astype(np.int64), rows
