"""Columns of a database whose tables and columns differ from version to version."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.trace import NONE, Column, Names, no_rows

_AT_ONCE = 1 << 14
_MOST_VARIABLES = 500  # old SQLite takes 999 of them in a statement


class Database:
    """Reads integer columns; one that is missing is filled with ``NONE``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self.tables = {str(name) for (name,) in rows}

    def columns_of(self, table: str) -> set[str]:
        """Names of a table's columns; empty where there is no such table."""
        if table not in self.tables:
            return set()
        return {str(row[1]) for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def read(self, table: str, columns: Sequence[str]) -> list[Column]:
        """Columns int64[rows] in the order asked for; null and missing values are ``NONE``."""
        there = self.columns_of(table)
        if not there:
            return [no_rows() for _ in columns]
        wanted = [f'IFNULL("{name}", {NONE})' if name in there else str(NONE) for name in columns]
        ((count,),) = self._connection.execute(f'SELECT COUNT(*) FROM "{table}"')
        whole, first = np.empty((len(columns), count), dtype=np.int64), 0
        for rows in _batches(
            self._connection.execute(f'SELECT {", ".join(wanted)} FROM "{table}"')
        ):
            whole[:, first : first + len(rows)] = np.array(rows, dtype=np.int64).T
            first += len(rows)
        return list(whole)

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[object, ...]]:
        """Rows of a small table as they are; none where a column is missing."""
        if not set(columns) <= self.columns_of(table):
            return []
        wanted = ", ".join(f'"{name}"' for name in columns)
        return list(self._connection.execute(f'SELECT {wanted} FROM "{table}"'))

    def titles(self, table: str, text: str, text_id: str, names: Names) -> Column:
        """Names of a table's rows, numbered: their plain text, or the registered string."""
        there = self.columns_of(table)
        registered = f"(SELECT value FROM StringIds WHERE id = t.{text_id})"
        known = text_id in there and {"id", "value"} <= self.columns_of("StringIds")
        sources = [*([text] * (text in there)), *([registered] * known), "''", "''"]
        if not there:
            return no_rows()
        cursor = self._connection.execute(
            f'SELECT COALESCE({", ".join(sources)}) FROM "{table}" t'
        )
        parts = [
            np.array([names.number(title) for (title,) in rows], dtype=np.int64)
            for rows in _batches(cursor)
        ]
        return np.concatenate(parts) if parts else no_rows()

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
        return found


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open a database to read it.

    Raises:
        ProfileError: No such file, or it is no whole database.
    """
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a profile, as results/RUN/step.sqlite.")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        yield Database(connection)
    except (sqlite3.DatabaseError, OverflowError, ValueError) as error:
        raise ProfileError(
            f"{path} cannot be read as an export of nsys ({error}): export it anew with "
            "`nsys export --type=sqlite`."
        ) from None
    finally:
        connection.close()


def _batches(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
    while rows := cursor.fetchmany(_AT_ONCE):
        yield rows
