"""Reads what ``nsys export --type=sqlite`` wrote.

Tables are made as they are needed and their columns differ between versions, so both are looked
for, and no version is asked.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.ranges import DOMAIN, STEP, Ranges, fitting
from dsv4kv.measure.profilers.steps import Launches, choose_ranges, find_steps
from dsv4kv.measure.profilers.trace import (
    CORRELATION_BITS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NONE,
    Calls,
    Column,
    LaunchShape,
    Names,
    Trace,
    Work,
    constant,
    find,
    number_rows,
    pick,
)
from dsv4kv.units import counted

_AT_ONCE = 1 << 12
_MOST_VARIABLES = 500  # old SQLite takes 999 of them in a statement
_LONGEST_TEXT = 1 << 24
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
_OPERATIONS = 64  # of SQLite for each byte of the file: whole exports take one or two
_FEWEST_OPERATIONS = 1 << 24
_LOOK_EVERY = 1 << 20
_OF_NSYS = ("CUPTI_ACTIVITY_", "META_DATA_", "NVTX_EVENTS", "StringIds", "TARGET_INFO_")


@dataclass(frozen=True)
class Packed:
    """Columns read as one number, which takes a fraction of the time of one each.

    Attributes:
        columns: Their names; the last has the lowest bits.
        bits: Of each; higher ones of a value are lost.
    """

    columns: tuple[str, ...]
    bits: tuple[int, ...]

    def unpack(self, value: int) -> list[int] | None:
        """The columns' values; None where one of them was missing or null."""
        if value == NONE:
            return None
        shifts = [sum(self.bits[place + 1 :]) for place in range(len(self.bits))]
        return [
            value >> shift & (1 << bits) - 1 for shift, bits in zip(shifts, self.bits, strict=True)
        ]

    def sql(self, there: Collection[str]) -> str:
        """The expression of a table that has these columns."""
        packed = "0"
        for name, bits in zip(self.columns, self.bits, strict=True):
            packed = f"({packed} << {bits} | ({_value(name, there)} & {(1 << bits) - 1}))"
        return packed


class Database:
    """Reads integer columns; one that is missing is filled with ``NONE``.

    Views and virtual tables, which nsys does not write, are not there: they compute anything.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute(_TABLES)
        self.tables = {str(name) for (name,) in rows}

    def columns_of(self, table: str) -> set[str]:
        """Names of a table's columns; empty where there is no such table."""
        if table not in self.tables:
            return set()
        return {str(row[1]) for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def read(self, table: str, columns: Sequence[str | Packed]) -> list[Column]:
        """Columns int64[rows] in the order asked for; null and missing values are ``NONE``."""
        width = len(columns)
        parts = (
            np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * width)
            for rows in self._select(table, columns)
        )
        return _columns(parts, width, self._count(table))

    def read_named(
        self, table: str, columns: Sequence[str], text: str, names: Names
    ) -> list[Column]:
        """As ``read``, and last the number of every row's text; ``NONE`` where it has none."""
        parts = (_numbered(rows, names) for rows in self._select(table, columns, text))
        return _columns(parts, len(columns) + 1, self._count(table))

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[object, ...]]:
        """Rows of a small table as they are; none where a column is missing."""
        if not set(columns) <= self.columns_of(table):
            return []
        wanted = ", ".join(f'"{name}"' for name in columns)
        return list(self._connection.execute(f'SELECT {wanted} FROM "{table}"'))

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Texts of ``StringIds``; an id without one is left out."""
        if not {"id", "value"} <= self.columns_of("StringIds"):
            return {}
        found: dict[int, str] = {}
        wanted = list(ids)
        for first in range(0, len(wanted), _MOST_VARIABLES):
            some = wanted[first : first + _MOST_VARIABLES]
            marks = ", ".join("?" * len(some))
            query = f"SELECT id, value FROM StringIds WHERE id IN ({marks})"
            found.update(self._connection.execute(query, some))
        return {number: text for number, text in found.items() if isinstance(text, str)}

    def _count(self, table: str) -> int:
        if table not in self.tables:
            return 0
        ((count,),) = self._connection.execute(f'SELECT COUNT(*) FROM "{table}"')
        return int(count)

    def _select(
        self, table: str, columns: Sequence[str | Packed], text: str | None = None
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Rows in batches: one statement, since each may go through the rows in its own order."""
        there = self.columns_of(table)
        if not there:
            return
        values = [
            _value(one, there) if isinstance(one, str) else one.sql(there) for one in columns
        ]
        wanted = [f"IFNULL({value}, {NONE})" for value in values]
        if text is not None:
            wanted.append(_value(text, there))
        cursor = self._connection.execute(f'SELECT {", ".join(wanted)} FROM "{table}"')
        while rows := cursor.fetchmany(_AT_ONCE):
            yield rows


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open an export of nsys to read it.

    Raises:
        ProfileError: No such file, or it is no whole database, or not one of nsys.
    """
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a profile, as results/RUN/step.sqlite.")
    try:
        with closing(_connect(path)) as connection:
            _limit(connection, path.stat().st_size)
            database = Database(connection)
            if not any(table.startswith(_OF_NSYS) for table in database.tables):
                raise ProfileError(f"{path} is a database without any table that nsys exports.")
            yield database
    except (sqlite3.Error, OverflowError, ValueError) as error:
        raise ProfileError(
            f"{path} cannot be read as an export of nsys ({error}): export it again with "
            "`nsys export --type=sqlite`."
        ) from None


def _connect(path: Path) -> sqlite3.Connection:
    """Open to read; where SQLite may write no lock (a read-only folder), the file as it is."""
    uri = path.resolve().as_uri()
    connection = sqlite3.connect(f"{uri}?mode=ro", uri=True)
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError:
        connection.close()
        return sqlite3.connect(f"{uri}?immutable=1", uri=True)
    return connection


def _limit(connection: sqlite3.Connection, size: int) -> None:
    """Let reading end with an error: a damaged file can lead SQLite in a circle."""
    most = _FEWEST_OPERATIONS + _OPERATIONS * size
    looks = iter(range(most // _LOOK_EVERY))
    connection.set_progress_handler(lambda: next(looks, None) is None, _LOOK_EVERY)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)


def _value(name: str, there: Collection[str]) -> str:
    return f'"{name}"' if name in there else "NULL"


def _numbered(rows: Sequence[tuple[Any, ...]], names: Names) -> Column:
    """Rows one after another, the text at the end of each as its number."""
    *numbers, texts = zip(*rows, strict=True)
    known = [names.number(text) if isinstance(text, str) else NONE for text in texts]
    return np.array([*numbers, known], dtype=np.int64).T.ravel()


def _columns(parts: Iterable[Column], width: int, count: int) -> list[Column]:
    """Columns of ``count`` rows that come in parts, one row after another."""
    whole, first = np.empty((width, count), dtype=np.int64), 0
    for part in parts:
        table = part.reshape(-1, width)
        whole[:, first : first + len(table)] = table.T
        first += len(table)
    return list(whole[:, :first])  # fewer where a damaged index counted them


_TABLE = "NVTX_EVENTS"
_PUSH_POP, _START_END, _DOMAIN_MADE = 59, 60, 75


def read_ranges(database: Database, names: Names, step: str) -> Ranges:
    """Ranges of all domains; where the toolkit's own has steps, those of others are none.

    A range's name is plain ``text``, or a registered string (``textId``). An event that does not
    say what it is is one if it has an end.
    """
    start, end, kind, domain, thread, text_id, text = database.read_named(
        _TABLE,
        ("start", "end", "eventType", "domainId", "globalTid", "textId"),
        "text",
        names,
    )
    name = np.where(text == NONE, number_texts(database, text_id, names, ""), text)
    typeless = (kind == NONE) & (end != NONE)
    is_range = (kind == _PUSH_POP) | (kind == _START_END) | typeless
    made = (kind == _DOMAIN_MADE) & (name == names.known.get(DOMAIN, NONE))
    is_step = is_range & np.isin(name, fitting(names.known, step))
    own = is_step & np.isin(domain, domain[made])
    if np.any(own):
        is_range &= own | ~is_step
    return Ranges(thread[is_range], start[is_range], end[is_range], name[is_range])


def number_texts(database: Database, ids: Column, names: Names, instead: str) -> Column:
    """Number the registered strings of a column of ids; ``instead`` of one that is not there.

    A ``{}`` in ``instead`` stands for the id.
    """
    distinct, inverse = np.unique(ids, return_inverse=True)
    texts = database.strings(distinct.tolist())
    numbers = [names.number(texts.get(one, instead.format(one))) for one in distinct.tolist()]
    return np.array(numbers, dtype=np.int64)[inverse]


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


_GPUS, _OF_PROCESSES = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"
_CUDA_BITS = 32


def read_devices(database: Database, launched: Launched) -> tuple[Column, dict[int, str]]:
    """Number of the GPU of every piece of work, and the names of GPUs by number.

    Where the export says which GPU a process calls by which CUDA number, the numbers are those
    of the machine; else they are CUDA's.
    """
    process, cuda, gpu = database.read(_OF_PROCESSES, ("pid", "cudaId", "gpuId"))
    found = find(_key(process, cuda), _key(launched.pid, launched.device))
    if len(found) and np.all(found != NONE) and np.all(gpu >= 0):
        return gpu[found], _names(database, "id")
    return launched.device, _names(database, "cuDevice") or _names(database, "id")


def _key(process: Column, cuda: Column) -> Column:
    return (process << _CUDA_BITS) | cuda


def _names(database: Database, number: str) -> dict[int, str]:
    rows = database.rows(_GPUS, (number, "name"))
    return {gpu: str(name) for gpu, name in rows if isinstance(gpu, int)}


_WORTH_TELLING = 2  # severity of a diagnostic: 1 is information
_MOST_SHOWN = 8


def read_nsys(path: Path, step: str = STEP) -> Trace:
    """Read an export; ranges named ``step`` are the steps, or else what repeats.

    Raises:
        ProfileError: It cannot be read.
    """
    with open_database(path) as database:
        return _read(database, step)


def _read(database: Database, step: str) -> Trace:
    names = Names()
    launched, shapes = read_work(database, names)
    launched, unended = _with_ends(launched)
    called, keys = _read_calls(database, launched)
    launches = _launches(launched, called, find(keys, launched.launch))
    ranges = read_ranges(database, names, step)
    made = launches.made
    is_step, fit = choose_ranges(
        step, ranges, names.known, called.thread[made], called.start_ns[made]
    )
    ends = [ranges.end_ns, called.end_ns, launched.end_ns]
    ranges, is_step, cut_off = _settle_cut_off(ranges, is_step, ends)
    steps = find_steps(step, ranges, is_step, fit, names.listed(), launches)
    device, devices = read_devices(database, launched)
    return Trace(
        tool="nsys",
        names=names.listed(),
        work=_work(
            launched, device, *(pick(one, launches.call) for one in (steps.step, steps.phase))
        ),
        shapes=shapes,
        steps_ns=steps.times_ns,
        calls=Calls(called.start_ns[made], called.closed_ns[made], steps.step[made]),
        devices=devices,
        version=_read_version(database),
        warnings=[*_read_diagnostics(database), *_judge(launched), *steps.warnings],
        notes=[*steps.notes, *cut_off, *unended],
    )


def _with_ends(launched: Launched) -> tuple[Launched, list[str]]:
    """The work whose end is known, and a note of the other: a capture may cut it off."""
    ended = launched.end_ns >= launched.start_ns
    left = int(np.count_nonzero(~ended))
    if not left:
        return launched, []
    return launched.where(ended), [f"left out: {counted(left, 'piece')} of work without an end"]


def _launches(launched: Launched, called: Ranges, call: Column) -> Launches:
    of_graph = np.zeros(len(called), dtype=np.bool_)
    of_graph[call[(call != NONE) & ((launched.node > 0) | (launched.kind == GRAPH))]] = True
    spent = launched.end_ns - launched.start_ns
    return Launches(called, of_graph, call, launched.name, launched.start_ns, spent)


def _settle_cut_off(
    ranges: Ranges, is_step: NDArray[np.bool_], ends: list[Column]
) -> tuple[Ranges, NDArray[np.bool_], list[str]]:
    """Ranges without the steps that have no end, which are steps, and a note of those.

    A capture that stops inside a step cuts it off: it has no duration and not all of its work.
    Where there are no others, they last until the last of the profile's ends.
    """
    cut_off = is_step & (ranges.end_ns < ranges.start_ns)
    count = int(np.count_nonzero(cut_off))
    if not count:
        return ranges, is_step, []
    dropped = f"{counted(count, 'step')} without an end"
    if np.any(is_step & ~cut_off):
        return ranges.where(~cut_off), is_step[~cut_off], [f"left out: {dropped}"]
    last = max(int(times.max(initial=NONE)) for times in ends)
    closed = replace(ranges, end_ns=np.where(cut_off, last, ranges.end_ns))
    return closed, is_step, [f"{dropped}: taken to last until the end of the profile"]


def _read_calls(database: Database, launched: Launched) -> tuple[Ranges, Column]:
    """Calls of the host, as ranges without names, and the keys that work finds them by."""
    thread, start, end, correlation = database.read(
        f"{TABLES}RUNTIME", ("globalTid", "start", "end", "correlationId")
    )
    keys = launch_key(thread, correlation)
    if not np.any(launched.launch > CORRELATION_MASK):
        keys &= CORRELATION_MASK  # an old export: work does not name its process
    keys[correlation == NONE] = NONE  # or unified memory's copies, without one, would find it
    return Ranges(thread, start, end, constant(len(thread), NONE)), keys


def _work(launched: Launched, device: Column, step: Column, phase: Column) -> Work:
    return Work(
        name=launched.name,
        kind=launched.kind,
        start_ns=launched.start_ns,
        end_ns=launched.end_ns,
        self_ns=launched.end_ns - launched.start_ns,
        device=device,
        stream=launched.stream,
        shape=launched.shape,
        node=launched.node,
        step=step,
        phase=phase,
        bytes=launched.bytes,
    )


def _read_diagnostics(database: Database) -> list[str]:
    """What nsys itself complained about, worst first."""
    rows = database.rows("DIAGNOSTIC_EVENT", ("severity", "text"))
    notes = [
        (severity, " ".join(str(text).split()))
        for severity, text in rows
        if isinstance(severity, int) and severity >= _WORTH_TELLING
    ]
    texts = list(dict.fromkeys(text for _, text in sorted(notes, key=lambda one: -one[0])))
    left = len(texts) - _MOST_SHOWN
    more = [f"nsys: and {left} more in DIAGNOSTIC_EVENT"] if left > 0 else []
    return [*(f"nsys: {text}" for text in texts[:_MOST_SHOWN]), *more]


def _judge(launched: Launched) -> list[str]:
    graphs = np.count_nonzero(launched.kind == GRAPH)
    if graphs:
        note = f"{graphs} launches of graphs were traced as a whole, their kernels are not in the"
        return [f"{note} file: profile with --cuda-graph-trace=node."]
    if not np.any(launched.kind == KERNEL):
        return ["the file has no GPU kernels: was the profiler on while the steps ran?"]
    return []


def _read_version(database: Database) -> str | None:
    rows = database.rows("META_DATA_EXPORT", ("name", "value"))
    found = [value for name, value in rows if name == "EXPORT_SCHEMA_VERSION"]
    return f"export schema {found[0]}" if found else None
