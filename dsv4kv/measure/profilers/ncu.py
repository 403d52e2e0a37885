"""Reads ``.ncu-rep`` files through NVIDIA's ``ncu-report`` package (extra ``profile``), or ncu.

Reads ``.ncu-rep`` files with ncu itself, as a table in CSV: where ``ncu-report`` is missing. Such
a table begins after lines of ncu's own: names of columns, their units, a row each kernel.
"""

import csv
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.sessions import ask, find_tool
from dsv4kv.measure.profilers.trace import KERNEL, NONE, Column, LaunchShape, Names, Trace, Work
from dsv4kv.measure.profilers.trace import constant as column_of

_HEAD = '"ID",'
_TIMEOUT_S = 120.0
_SHAPES = {"launch__grid_dim": "Grid Size", "launch__block_dim": "Block Size"}
_AXES = "xyz"
_NAME = "Kernel Name"


@dataclass(frozen=True)
class CsvMetric:
    """A number with its unit; the functions are those of the ``ncu_report`` package."""

    text: str
    of: str

    def as_double(self) -> float:
        """The number."""
        return float(self.text.replace(",", ""))

    def as_string(self) -> str:
        """The text."""
        return self.text

    def unit(self) -> str:
        """Its unit."""
        return self.of


@dataclass(frozen=True)
class CsvAction:
    """A kernel: its row, and the row of units."""

    row: dict[str, str]
    units: dict[str, str]

    def name(self) -> str:
        """Of the kernel."""
        return self.row[_NAME]

    def metric_by_name(self, name: str) -> CsvMetric | None:
        """A metric, or None where it was not collected."""
        stem, _, axis = name.rpartition("_")
        if stem in _SHAPES:  # (64, 2, 1)
            sizes = self.row.get(_SHAPES[stem], "").strip("()").split(",")
            return CsvMetric(sizes[_AXES.index(axis)], "") if len(sizes) == len(_AXES) else None
        text = self.row.get(name, "")
        return CsvMetric(text, self.units[name]) if text and text != "n/a" else None


def read_actions(ncu: str, path: Path) -> list[CsvAction]:
    """Every kernel of a report.

    Raises:
        ProfileError: ncu gives no table.
    """
    options = ["--csv", "--page", "raw", "--print-units", "base"]
    lines = ask([ncu, "--import", str(path), *options], _TIMEOUT_S).splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(_HEAD)), None)
    if first is None:
        said = " | ".join(line.strip() for line in lines[-3:]) or "nothing"
        raise ProfileError(f"{path} cannot be read by ncu, which says: {said}.")
    try:
        units, *rows = csv.DictReader(lines[first:])
    except (ValueError, csv.Error) as error:
        raise ProfileError(f"{path}: the table that ncu gives cannot be read ({error}).") from None
    return [CsvAction(row, units) for row in rows if row.get(_NAME)]


_DURATION = "gpu__time_duration.sum"
_DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_REGISTERS = "launch__registers_per_thread"
_GRID = tuple(f"launch__grid_dim_{axis}" for axis in "xyz")
_BLOCK = tuple(f"launch__block_dim_{axis}" for axis in "xyz")
_SHARED = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
_DEVICE = "device__attribute_display_name"
_UNITS = {
    **dict.fromkeys(("s", "second"), 1000000000.0),
    **dict.fromkeys(("ms", "msecond", "Mbyte"), 1000000.0),
    **dict.fromkeys(("us", "usecond", "Kbyte"), 1000.0),
    "Gbyte": 1e9,
}
"""What a value in this unit is multiplied by to be ns or bytes."""
_MOST = 2.0**53  # ns are 104 days; the sum of a thousand kernels' fits an int64


def read_ncu(path: Path) -> Trace:
    """Read a report: every kernel with its time, DRAM bytes and launch shape.

    ncu runs every kernel alone, some of them several times, so there are no steps and no gaps.

    Raises:
        ProfileError: It cannot be read, or neither the package nor ncu is there to do so.
    """
    names, shapes = Names(), dict[LaunchShape, int]()
    rows, devices = [], dict[str, None]()
    for action in _actions(path):
        numbers = _row(action, names, shapes)
        rows.append(numbers)
        if device := _text(action, _DEVICE):
            devices[device] = None
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Trace(
        tool="ncu",
        names=names.listed(),
        work=_work(table),
        shapes=list(shapes),
        steps_ns=np.empty((0, 2), dtype=np.int64),
        devices=dict(enumerate(devices)),
        has_clock=False,
        warnings=_judge(table),
        notes=["ncu runs each kernel by itself: its times have no gaps"],
    )


def _judge(table: Column) -> list[str]:
    untimed = int(np.count_nonzero(table[:, 1] == NONE))
    if not len(table):
        return ["the report has no kernels: ncu chose none, or it is no report."]
    warning = (
        f"{untimed:,} of {len(table):,} kernels have no {_DURATION} and count as 0: collect it"
    )
    return [warning] if untimed else []


def _actions(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a report of ncu, .ncu-rep.")
    try:
        package = importlib.import_module("ncu_report")
    except ImportError:
        yield from _actions_by_ncu(path)
        return
    try:
        context = package.load_report(str(path))
        for i in range(context.num_ranges()):
            part = context.range_by_idx(i)
            yield from (part.action_by_idx(j) for j in range(part.num_actions()))
    except Exception as error:  # the package raises whatever its C++ does
        raise ProfileError(f"{path} cannot be read as a report of ncu ({error}).") from None


def _actions_by_ncu(path: Path) -> list[CsvAction]:
    ncu = find_tool("ncu")
    if ncu is None:
        raise ProfileError(
            f"{path} needs the ncu-report package to be read (pip install 'dsv4kv[profile]'), or "
            "ncu itself on PATH."
        )
    return read_actions(ncu, path)


def _row(action: Any, names: Names, shapes: dict[LaunchShape, int]) -> tuple[int, int, int, int]:
    """Name, duration in ns, DRAM bytes and shape."""
    grid, block = (_triple(action, metrics) for metrics in (_GRID, _BLOCK))
    registers, shared = _value(action, _REGISTERS), [_value(action, name) for name in _SHARED]
    known = [round(size) for size in shared if size is not None]
    shape = LaunchShape(
        grid, block, None if registers is None else round(registers), sum(known) or None
    )
    duration, moved = _value(action, _DURATION), [_value(action, name) for name in _DRAM]
    sizes = [size for size in moved if size is not None]
    return (
        names.number(str(action.name())),
        NONE if duration is None else round(duration),
        round(sum(sizes)) if len(sizes) == len(_DRAM) else NONE,
        shapes.setdefault(shape, len(shapes)),
    )


def _triple(action: Any, metrics: tuple[str, ...]) -> tuple[int, int, int] | None:
    values = [_value(action, name) for name in metrics]
    if any(value is None for value in values):
        return None
    x, y, z = (round(value) for value in values if value is not None)
    return x, y, z


def _value(action: Any, name: str) -> float | None:
    """A metric in ns or bytes; None where it was not collected, or is no number."""
    metric = action.metric_by_name(name)
    if metric is None:
        return None
    unit, _, _ = str(metric.unit() or "").partition("/")  # a block's, a thread's
    try:
        value = float(metric.as_double()) * _UNITS.get(unit, 1.0)
    except ValueError:
        return None
    return value if abs(value) < _MOST else None


def _text(action: Any, name: str) -> str | None:
    metric = action.metric_by_name(name)
    return None if metric is None else str(metric.as_string())


def _work(table: Column) -> Work:
    rows, duration = len(table), np.maximum(table[:, 1], 0)
    ends = np.cumsum(duration)
    nothing, zero = column_of(rows, NONE), column_of(rows, 0)
    return Work(
        name=table[:, 0],
        kind=column_of(rows, KERNEL),
        start_ns=ends - duration,
        end_ns=ends,
        self_ns=duration,
        device=zero,
        stream=zero,
        shape=table[:, 3],
        node=zero,
        step=nothing,
        phase=nothing,
        bytes=table[:, 2],
    )
