"""Reads what ``nsys export --type=sqlite`` wrote.

Tables are made as they are needed and their columns differ between versions, so both are looked
for, and no version is asked.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ProfileError
from dsv4kv.profile import trace as tr
from dsv4kv.units import counted

_LONGEST_TEXT = 1 << 24
_TEXTS, _SPARED_BYTES = 4, 1 << 20  # of texts for each byte of the file, and in any case
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
_OPERATIONS = 64  # of SQLite for each byte of the file: whole exports take one or two
_FEWEST_OPERATIONS = 1 << 24
_LOOK_EVERY = 1 << 20
_OF_NSYS = ("CUPTI_ACTIVITY_", "META_DATA_", "NVTX_EVENTS", "StringIds", "TARGET_INFO_")


class Database:
    """Reads integer columns of tables, not of views, which may compute anything."""

    def __init__(self, connection: sqlite3.Connection, most_bytes: int) -> None:
        """``most_bytes``: of all texts that are read, more than which is no file of its size."""
        self._connection, self._left = connection, most_bytes
        connection.text_factory = self._take_text
        rows = connection.execute(_TABLES)
        self.tables = {str(name) for (name,) in rows}

    def _take_text(self, text: bytes) -> str:
        # a column that was added has its default, of megabytes, in every row
        self._left -= len(text)
        if self._left < 0:
            raise ValueError("its texts are many times as long as the file")
        return text.decode()

    def columns_of(self, table: str) -> set[str]:
        """Names of a table's columns; empty where there is no such table."""
        if table not in self.tables:
            return set()
        return {str(row[1]) for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def read(
        self,
        table: str,
        columns: Sequence[str],
        text: str | None = None,
        number: Callable[[object], int] | None = None,
    ) -> list[tr.Column]:
        """Columns int64[rows] in the order asked for; null and missing values are ``NONE``.

        With ``text`` the last column is the ``number`` of that column's value.
        """
        there, width = self.columns_of(table), len(columns) + bool(text)
        if not there:
            return [tr.constant(0, 0) for _ in range(width)]
        known = {name: f'"{name}"' if name in there else "NULL" for name in (*columns, text or "")}
        wanted = [f"IFNULL({known[name]}, {tr.NONE})" for name in columns]
        wanted += [_plain(known[text])] if text else []
        # one statement: each may go through the rows in its own order
        rows: Iterable[tuple[Any, ...]] = self._connection.execute(
            f'SELECT {", ".join(wanted)} FROM "{table}"'
        )
        if number:
            rows = ((*row[:-1], number(row[-1])) for row in rows)
        flat = np.fromiter(chain.from_iterable(rows), np.int64)
        return list(np.ascontiguousarray(flat.reshape(-1, width).T))

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[object, ...]]:
        """Rows of a small table as they are; none where a column is missing."""
        if not set(columns) <= self.columns_of(table):
            return []
        wanted = ", ".join(_plain(f'"{name}"') for name in columns)
        return list(self._connection.execute(f'SELECT {wanted} FROM "{table}"'))

    @cached_property
    def strings(self) -> dict[object, str]:
        """Texts of ``StringIds`` by their ids."""
        rows = self.rows("StringIds", ("id", "value"))
        return {number: text for number, text in rows if isinstance(text, str)}


def _plain(column: str) -> str:
    """Numbers and texts of a column: its bytes would not be counted."""
    return f"CASE TYPEOF({column}) WHEN 'blob' THEN NULL ELSE {column} END"


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open an export of nsys to read it; raises ``ProfileError``."""
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a profile, as results/RUN/step.sqlite.")
    for beside in (Path(f"{path.resolve()}-{end}") for end in ("journal", "wal")):
        if beside.is_file() and beside.stat().st_size:
            raise ProfileError(
                f"{path} is still being written, or was left unfinished: {beside.name} has a part "
                "of it. End what writes it, or export it again with `nsys export --type=sqlite`."
            )
    try:
        # SQLite then neither opens nor makes a file beside it: a pipe there would never answer
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            # a damaged file can lead SQLite in a circle: reading it ends with an error
            most = _FEWEST_OPERATIONS + _OPERATIONS * path.stat().st_size
            looks = iter(range(most // _LOOK_EVERY))
            connection.set_progress_handler(lambda: next(looks, None) is None, _LOOK_EVERY)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
            database = Database(connection, _SPARED_BYTES + _TEXTS * path.stat().st_size)
            if not any(table.startswith(_OF_NSYS) for table in database.tables):
                raise ProfileError(f"{path} is a database without any table that nsys exports.")
            yield database
    except (sqlite3.Error, OverflowError, ValueError) as error:
        raise ProfileError(
            f"{path} cannot be read as an export of nsys ({error}): export it again with "
            "`nsys export --type=sqlite`."
        ) from None


_PUSH_POP, _START_END = 59, 60
_LATEST_NS = 1 << 61  # so that differences fit an int64; today is 2^60.6


def _are_timed(rows: tr.Ranges | tr.Work) -> NDArray[np.bool_]:
    """Which rows have a begin and an end: a capture may cut them off."""
    return (rows.start_ns >= 0) & (rows.end_ns >= rows.start_ns) & (rows.end_ns <= _LATEST_NS)


def read_ranges(database: Database, names: tr.Names) -> tuple[tr.Ranges, int]:
    """Ranges of all domains that have times, and how many do not."""
    start, end, kind, thread, text_id, text = database.read(
        "NVTX_EVENTS",
        ("start", "end", "eventType", "globalTid", "textId"),
        "text",
        lambda text: names.number(text) if isinstance(text, str) else tr.NONE,
    )
    name = np.where(text == tr.NONE, number_texts(database, text_id, names, ""), text)
    typeless = (kind == tr.NONE) & (end != tr.NONE)  # an event without a kind
    is_range = (kind == _PUSH_POP) | (kind == _START_END) | typeless
    ranges = tr.Ranges(thread[is_range], start[is_range], end[is_range], name[is_range])
    timed = _are_timed(ranges)
    return ranges.where(timed), int(np.count_nonzero(~timed))


def number_texts(database: Database, ids: tr.Column, names: tr.Names, instead: str) -> tr.Column:
    """Number the registered strings of a column of ids; ``instead``, with {} the id, of others."""
    texts = database.strings
    return _name_each(ids, names, lambda one: texts.get(one, instead.format(one)))


_PREFIX = "CUPTI_ACTIVITY_KIND_"
_PLACE = ("start", "end", "deviceId", "globalPid", "correlationId", "graphNodeId")
_TITLES = ("demangledName", "shortName", "mangledName")
_WAYS = ("host to device", "device to host", "device to device")
_COPIES = dict(zip((1, 2, 8, 9, 10), (*_WAYS, "host to host", "peer to peer"), strict=True))
_COPIES |= {11 + number: f"{way}, unified memory" for number, way in enumerate(_WAYS)}
_PID_BIT, _PID_MASK = 24, (1 << 24) - 1
CORRELATION_MASK = (1 << tr.CORRELATION_BITS) - 1


def launch_key(pid: tr.Column, correlation: tr.Column) -> tr.Column:
    """One number for a process and its correlation id; global ids keep the pid from bit 24 on."""
    process = np.where(pid == tr.NONE, 0, (pid >> _PID_BIT) & _PID_MASK)
    return (process << tr.CORRELATION_BITS) | (correlation & CORRELATION_MASK)


def read_work(database: Database, names: tr.Names) -> tuple[tr.Work, tr.Column, tr.Column]:
    """All work of all GPUs, the keys of the calls that launched it, and its graphs' nodes."""
    known = database.columns_of(f"{_PREFIX}KERNEL")
    title = next((one for one in _TITLES if one in known), _TITLES[0])
    kernels, (text,) = _read_table(database, tr.KERNEL, title)
    kernels["name"] = number_texts(database, text, names, "kernel {}")
    copies, (copies["bytes"], way) = _read_table(database, tr.MEMCPY, "bytes", "copyKind")
    copies["name"] = _name_each(
        way, names, lambda one: f"memcpy {_COPIES.get(one, f'of kind {one}')}"
    )
    fills, (fills["bytes"],) = _read_table(database, tr.MEMSET, "bytes")
    fills["name"] = _name_each(fills["kind"], names, lambda _: "memset")
    graphs, (graph,) = _read_table(database, tr.GRAPH, "graphId")
    graphs["name"] = _name_each(graph, names, lambda one: f"CUDA graph {one}")
    tables = (kernels, copies, fills, graphs)
    columns = {
        name: np.concatenate(
            [table.get(name, tr.constant(len(table["kind"]), tr.NONE)) for table in tables]
        )
        for name in (*kernels, "bytes")
    }
    launch, node = columns.pop("launch"), columns.pop("node")
    return tr.make_work(**columns), launch, node


def _read_table(
    database: Database, kind: int, *more: str
) -> tuple[dict[str, tr.Column], list[tr.Column]]:
    table = _PREFIX + ("GRAPH_TRACE" if kind == tr.GRAPH else tr.KINDS[kind].upper())
    start, end, device, pid, correlation, node, *others = database.read(table, (*_PLACE, *more))
    return {
        "kind": tr.constant(len(start), kind),
        "start_ns": start,
        "end_ns": end,
        "device": np.maximum(device, 0),
        "launch": launch_key(pid, correlation),
        "node": node,
    }, others


def _name_each(values: tr.Column, names: tr.Names, title: Callable[[int], str]) -> tr.Column:
    distinct, inverse = np.unique(values, return_inverse=True)
    numbers = [names.number(title(one)) for one in distinct.tolist()]
    return np.array(numbers, dtype=np.int64)[inverse]


_CUDA_BITS = 32


def read_devices(
    database: Database, work: tr.Work, launch: tr.Column
) -> tuple[tr.Column, dict[int, str]]:
    """Number of the GPU of every piece of work, and the names of GPUs by number.

    Where the export says which GPU a process calls by which CUDA number, the numbers are those
    of the machine; else they are CUDA's.
    """

    def names_by(column: str) -> dict[int, str]:
        rows = database.rows("TARGET_INFO_GPU", (column, "name"))
        return {number: str(name) for number, name in rows if isinstance(number, int)}

    process, cuda, gpu = database.read("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
    wanted = (launch >> tr.CORRELATION_BITS) << _CUDA_BITS | work.device
    found = tr.find(process << _CUDA_BITS | cuda, wanted)
    if len(found) and np.all(found != tr.NONE) and np.all(gpu >= 0):
        return gpu[found], names_by("id")
    return work.device, names_by("cuDevice") or names_by("id")


_WORTH_TELLING = 2  # severity of a diagnostic: 1 is information
_MOST_SHOWN = 8


def read_nsys(path: Path, step: str = tr.STEP) -> tr.Trace:
    """Read an export; ranges named ``step`` are the steps. Raises ``ProfileError``."""
    with open_database(path) as database:
        names = tr.Names()
        work, launch, node = read_work(database, names)
        timed = _are_timed(work)
        work, launch, left = work.where(timed), launch[timed], int(np.count_nonzero(~timed))
        called, keys, no_calls = _read_calls(database, launch)
        call, of_graph = tr.find(keys, launch), np.zeros(len(called), dtype=np.bool_)
        by_graph = (node[timed] > 0) | (work.kind == tr.GRAPH)
        of_graph[call[(call != tr.NONE) & by_graph]] = True
        ranges, cut_off = read_ranges(database, names)
        device, devices = read_devices(database, work, launch)
        launches = tr.Launches(called, of_graph, call, replace(work, device=device))
        facts = database.rows("META_DATA_EXPORT", ("name", "value"))
        schema = next((value for name, value in facts if name == "EXPORT_SCHEMA_VERSION"), None)
        cut = {"piece of work": left, "call": no_calls, "range": cut_off}
        more = {
            "devices": devices,
            "version": f"export schema {schema}" if schema else None,
            "warnings": _read_warnings(database, work),
            "notes": [
                f"omitted: {counted(n, what)} without a valid time" for what, n in cut.items() if n
            ],
        }
        return tr.trace_launches("nsys", step, ranges, names, launches, **more)


def _read_calls(database: Database, launch: tr.Column) -> tuple[tr.Ranges, tr.Column, int]:
    thread, start, end, correlation = database.read(
        f"{_PREFIX}RUNTIME", ("globalTid", "start", "end", "correlationId")
    )
    keys = launch_key(thread, correlation)
    if not np.any(launch > CORRELATION_MASK):
        keys &= CORRELATION_MASK  # an old export: work does not name its process
    # or unified memory's copies, without one, would find it
    keys[correlation == tr.NONE] = tr.NONE
    end = np.maximum(start, end)
    called = tr.Ranges(thread, start, end, tr.constant(len(thread), tr.NONE))
    timed = _are_timed(called)
    return called.where(timed), keys[timed], int(np.count_nonzero(~timed))


def _read_warnings(database: Database, work: tr.Work) -> list[str]:
    """Complaints of nsys itself, worst first, then what the file lacks."""
    rows = database.rows("DIAGNOSTIC_EVENT", ("severity", "text"))
    notes = [
        (severity, " ".join(str(text).split()))
        for severity, text in rows
        if isinstance(severity, int) and severity >= _WORTH_TELLING
    ]
    texts = list(dict.fromkeys(text for _, text in sorted(notes, key=lambda one: -one[0])))
    warnings = [f"nsys: {text}" for text in texts[:_MOST_SHOWN]]
    if (left := len(texts) - _MOST_SHOWN) > 0:
        warnings.append(f"nsys: and {left} more in DIAGNOSTIC_EVENT")
    if graphs := np.count_nonzero(work.kind == tr.GRAPH):
        note = f"{graphs} launches of graphs were traced as a whole, their kernels are not in the"
        warnings.append(f"{note} file: profile with --cuda-graph-trace=node.")
    elif not np.any(work.kind == tr.KERNEL):
        warnings.append("the file has no GPU kernels: was the profiler on while the steps ran?")
    return warnings
