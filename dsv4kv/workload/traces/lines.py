"""Lines of a trace file, plain or gzip, with their numbers; memory is one line."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Self

from dsv4kv.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
# A request of 1M tokens listed token by token is below 10 MB; a "line" beyond this is no trace.
_MAX_LINE_BYTES = 2**26


class Defect(ValueError):
    """What is wrong with the line just read: a sentence without place and full stop."""


class TraceLines:
    """Iterator over the lines of a trace, line ends kept; ``number`` is the last line's, from 1.

    Raises:
        Defect: Not UTF-8 text, damaged or truncated gzip, an absurdly long line.
    """

    def __init__(self, file: BufferedReader) -> None:
        compressed = file.peek(2)[:2] == _GZIP_MAGIC
        self._file = gzip.GzipFile(fileobj=file) if compressed else file
        self._ahead: str | None = None
        self.number = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if self._ahead is not None:
            line, self._ahead = self._ahead, None
            return line
        return self._read()

    def peek(self) -> str:
        """Return the first line that is not blank without consuming it; ``""`` at the end."""
        while self._ahead is None or self._ahead.isspace():
            try:
                self._ahead = self._read()
            except StopIteration:
                return ""
        return self._ahead

    def _read(self) -> str:
        self.number += 1
        line = _read_bytes(self._file)
        if not line:
            raise StopIteration
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise Defect("this is not UTF-8 text, neither plain nor gzip") from None
        return text.removeprefix("\ufeff") if self.number == 1 else text


def _read_bytes(file: BufferedReader | gzip.GzipFile) -> bytes:
    try:
        line = file.readline(_MAX_LINE_BYTES + 1)
    except EOFError:
        raise Defect("the gzip data ends early: the file is truncated") from None
    except (OSError, zlib.error) as error:
        raise Defect(f"the file cannot be read ({error})") from None
    if len(line) > _MAX_LINE_BYTES:
        raise Defect(f"the line is longer than {_MAX_LINE_BYTES // 2**20} MiB")
    return line


@contextmanager
def open_trace(path: Path) -> Iterator[TraceLines]:
    """Open a trace; a ``Defect`` inside the block leaves it as a ``TraceError`` with its line."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror}).") from None
    with file:
        lines = TraceLines(file)
        try:
            yield lines
        except Defect as defect:
            raise TraceError(f"{path}:{lines.number}: {defect}.") from None
