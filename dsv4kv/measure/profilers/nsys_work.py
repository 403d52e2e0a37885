"""Work of GPUs in an export of nsys: kernels, copies, fills, and graphs traced as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dsv4kv.measure.profilers.joining import CORRELATION_BITS, number_rows
from dsv4kv.measure.profilers.nsys_ranges import number_texts
from dsv4kv.measure.profilers.sqlite_columns import Database, Packed
from dsv4kv.measure.profilers.trace import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NONE,
    Column,
    LaunchShape,
    Names,
    constant,
)

TABLES = "CUPTI_ACTIVITY_KIND_"
_PLACE = ("start", "end", "deviceId", "streamId", "globalPid", "correlationId", "graphNodeId")
_GRID = Packed(("gridX", "gridY", "gridZ"), (31, 16, 16))  # CUDA allows no more
_BLOCK = Packed(("blockX", "blockY", "blockZ"), (16, 16, 16))
_SHARED = ("staticSharedMemory", "dynamicSharedMemory")
_SHAPE = (_GRID, _BLOCK, "registersPerThread", *_SHARED)
_TITLES = ("demangledName", "shortName", "mangledName")
_COPIES = {
    1: "host to device",
    2: "device to host",
    8: "device to device",
    9: "host to host",
    10: "peer to peer",
    11: "host to device, unified memory",
    12: "device to host, unified memory",
    13: "device to device, unified memory",
}
_PID_BIT, _PID_MASK = 24, (1 << 24) - 1
CORRELATION_MASK = (1 << CORRELATION_BITS) - 1


@dataclass(frozen=True)
class Launched:
    """Columns of work, and what finds the call that launched it; see ``trace.Work``."""

    name: Column
    kind: Column
    start_ns: Column
    end_ns: Column
    device: Column
    stream: Column
    launch: Column
    node: Column
    shape: Column
    bytes: Column

    def __len__(self) -> int:
        return len(self.name)

    @property
    def pid(self) -> Column:
        """Processes that launched; 0 where they are not known."""
        return self.launch >> CORRELATION_BITS

    def where(self, chosen: NDArray[np.bool_]) -> "Launched":
        """Some of the rows."""
        return Launched(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})


def launch_key(pid: Column, correlation: Column) -> Column:
    """One number for a process and its correlation id; global ids keep the pid from bit 24 on."""
    process = np.where(pid == NONE, 0, (pid >> _PID_BIT) & _PID_MASK)
    return (process << CORRELATION_BITS) | (correlation & CORRELATION_MASK)


def read_work(database: Database, names: Names) -> tuple[Launched, list[LaunchShape]]:
    """All work of all GPUs, and the launch shapes of its kernels."""
    kernels, shapes = _read_kernels(database, names)
    tables = [
        kernels,
        _read_copies(database, names),
        _read_sets(database, names),
        _read_graphs(database, names),
    ]
    return Launched(
        **{
            column.name: np.concatenate([getattr(table, column.name) for table in tables])
            for column in fields(Launched)
        }
    ), shapes


def _read_kernels(database: Database, names: Names) -> tuple[Launched, list[LaunchShape]]:
    table = f"{TABLES}KERNEL"
    title = next((one for one in _TITLES if one in database.columns_of(table)), _TITLES[0])
    text, *columns = database.read(table, [title, *_PLACE, *_SHAPE])
    name = number_texts(database, text, names, "kernel {}")
    numbers, distinct = number_rows(columns[len(_PLACE) :])
    shapes = [_shape(values) for values in distinct]
    return _launched(KERNEL, columns[: len(_PLACE)], name, shape=numbers), shapes


def _shape(values: Sequence[int]) -> LaunchShape:
    grid, block, registers, *shared = values
    known = [size for size in shared if size != NONE]
    return LaunchShape(
        grid=_triple(_GRID.unpack(grid)),
        block=_triple(_BLOCK.unpack(block)),
        registers=None if registers == NONE else registers,
        shared_bytes=sum(known) if known else None,
    )


def _triple(sizes: list[int] | None) -> tuple[int, int, int] | None:
    if sizes is None:
        return None
    x, y, z = sizes
    return x, y, z


def _read_copies(database: Database, names: Names) -> Launched:
    *place, size, way = database.read(f"{TABLES}MEMCPY", [*_PLACE, "bytes", "copyKind"])
    name = np.empty_like(way)
    for one in np.unique(way).tolist():
        name[way == one] = names.number(f"memcpy {_COPIES.get(one, f'of kind {one}')}")
    return _launched(MEMCPY, place, name, size=size)


def _read_sets(database: Database, names: Names) -> Launched:
    *place, size = database.read(f"{TABLES}MEMSET", [*_PLACE, "bytes"])
    name = constant(len(size), names.number("memset") if len(size) else NONE)
    return _launched(MEMSET, place, name, size=size)


def _read_graphs(database: Database, names: Names) -> Launched:
    *place, graph = database.read(f"{TABLES}GRAPH_TRACE", [*_PLACE, "graphId"])
    name = np.empty_like(graph)
    for one in np.unique(graph).tolist():
        name[graph == one] = names.number(f"CUDA graph {one}")
    return _launched(GRAPH, place, name)


def _launched(
    kind: int,
    place: list[Column],
    name: Column,
    *,
    shape: Column | None = None,
    size: Column | None = None,
) -> Launched:
    start, end, device, stream, pid, correlation, node = place
    nothing = constant(len(name), NONE)
    return Launched(
        name=name,
        kind=constant(len(name), kind),
        start_ns=start,
        end_ns=end,
        device=np.maximum(device, 0),
        stream=stream,
        launch=launch_key(pid, correlation),
        node=np.maximum(node, 0),
        shape=nothing if shape is None else shape,
        bytes=nothing if size is None else size,
    )
