"""Logs of requests, followed while they grow: a file, or a folder into which files come.

How far each file has been read is written with its rows, so that no line is read twice or left
out when a recording goes on. A file that another takes the place of is read to its end first.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from threading import Event as Stop
from typing import Any

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.recording.folder import Recording
from dsv4kv.recording.logs import read_line
from dsv4kv.recording.veil import Veil
from dsv4kv.units import counted

_POLL_S = 0.3
_MOST_BYTES = 2**26  # of a line; a longer one is about no request


class RequestLog:
    """A source of requests that others write."""

    def __init__(
        self, number: int, path: Path, recording: Recording, veil: Veil, *, follow: bool = True
    ) -> None:
        """``follow``: wait for more until stopped.

        Raises:
            ConfigError: There is no such file or folder, or it is a device.
        """
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"--requests {path}: this is no file: name a log or a folder.")
        if not path.exists():
            raise ConfigError(
                f"--requests {path}: there is no such log: start the server with its log of "
                "requests first (dsv4kv record --help names them)."
            )
        self._name, self._path, self._follow = f"requests:{number}", path, follow
        self._recording, self._veil = recording, veil
        self._open: dict[Path, _Growing] = {}
        self._lines = self._rows = 0

    def run(self, stop: Stop) -> None:
        """Read what is there, then what comes.

        Raises:
            TraceError: No line of it was about a request.
        """
        try:
            self._read()
            while self._follow and not stop.wait(_POLL_S):
                self._read()
            if self._follow:
                self._read()
        finally:
            for file in self._open.values():
                file.close()
        if self._lines and not self._rows:
            raise TraceError(
                f"--requests {self._path}: {counted(self._lines, 'line')} read, and none is of a "
                "log of requests that record knows (dsv4kv record --help names them): name "
                "another log, or turn on the server's."
            )

    def _read(self) -> None:
        for path in sorted(self._path.iterdir()) if self._path.is_dir() else [self._path]:
            source = f"{self._name}:{self._veil.name(path.name)}"
            if path not in self._open and path.is_file():
                place = self._recording.place("requests", source)
                self._open[path] = _Growing(path, place)
                self._rows += place is not None  # rows of it were written before
            if path in self._open:
                self._take(source, self._open[path])

    def _take(self, source: str, file: "_Growing") -> None:
        for line in file.lines(last=not self._follow):
            row = read_line(line.decode("utf-8", "replace"), self._veil)
            self._lines += 1
            if row is not None:
                self._rows += 1
                place = {"source": source, "place": file.place}
                self._recording.write("requests", row | place)


class _Growing:
    """A file that somebody writes."""

    def __init__(self, path: Path, place: Any = None) -> None:
        """``place``: how far it was read before."""
        self._path = path
        self._begin()
        if place and place[0] == self._inode:
            self._at = place[1]

    @property
    def place(self) -> list[int]:
        """Which file it is, and how many of its bytes have been read."""
        return [self._inode, self._at]

    def lines(self, *, last: bool) -> Iterator[bytes]:
        """Whole lines that have come; ``last``: and what is behind them."""
        yield from self._whole(last=last)
        if self._is_replaced():
            yield from self._whole(last=True)
            self.close()
            self._begin()
            yield from self._whole(last=last)

    def close(self) -> None:
        """It is followed no more."""
        self._file.close()

    def _begin(self) -> None:
        opened: Callable[[Path, str], Any] = gzip.open if self._path.suffix == ".gz" else open
        self._file: BufferedIOBase = opened(self._path, "rb")
        self._inode = self._path.stat().st_ino
        self._at = 0

    def _whole(self, *, last: bool) -> Iterator[bytes]:
        while True:
            try:
                self._file.seek(self._at)
                line = self._file.readline(_MOST_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile):  # its end has not been written yet
                return
            whole = line.endswith(b"\n") or len(line) == _MOST_BYTES
            if not line or not (whole or last):
                return
            self._at += len(line)
            yield line

    def _is_replaced(self) -> bool:
        """Whether another file has its name, or it was emptied."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        emptied = self._path.suffix != ".gz" and found.st_size < self._at
        return found.st_ino != self._inode or emptied
