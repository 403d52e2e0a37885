"""Columns of a database whose tables and columns differ from version to version."""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.trace import NONE, Column, Names

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
