"""Lines of a trace file, plain or gzip, with their numbers; memory is one line."""

import gzip
import os
import zlib
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import DEFAULT_BUFFER_SIZE, BufferedReader, BytesIO
from pathlib import Path
from typing import Self

from dsv4kv.errors import TraceError
from dsv4kv.files import DOCUMENT_BYTES, open_regular

_GZIP_MAGIC = b"\x1f\x8b"
# A request of 1M tokens listed token by token is below 10 MB; a "line" beyond this is no trace.
# Nor is so much of nothing: blank lines one after the other count as one, each as 64 bytes or
# more, for gzip packs a thousand of them into one byte.
_MAX_LINE_BYTES = 2**26
_BLANK_BYTES = 2**6
CHUNKS_BUFFER_BYTES = 2**18
"""For who reads chunks: lines across two buffers are few."""
_PIECE_BYTES = 2**20  # of a document that is read in parts
_CHUNK_BYTES = 2**15  # hundreds of plain lines, whose objects still fit the processor's caches


Watch = Callable[[int, int], object]
"""Hears how many of how many have been done, of bytes or of anything else."""
_WATCHED_LINES = 256  # between two words to who watches


class Defect(ValueError):
    """What is wrong with the line just read: a sentence without place and full stop."""


_NOT_TEXT = Defect("this is not UTF-8 text, neither plain nor gzip")


class TraceLines:
    """Iterator over the lines of a trace that are not blank, line ends kept.

    Attributes:
        number: The last line's number, from 1.

    Raises:
        Defect: Not UTF-8 text, damaged or truncated gzip, an absurdly long line.
    """

    def __init__(self, file: BufferedReader, watch: Watch | None = None) -> None:
        """``watch`` hears how many of the file's bytes have been read, as they are on disk."""
        compressed = file.peek(2)[:2] == _GZIP_MAGIC
        self._raw, self._size, self._watch = file, os.fstat(file.fileno()).st_size, watch
        self._file = gzip.GzipFile(fileobj=file) if compressed else file
        self._ahead: str | None = None
        self._decoder = getincrementaldecoder("utf-8")()
        self.number = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if self._ahead is not None:
            line, self._ahead = self._ahead, None
            return line
        return self._read()

    def peek(self) -> str:
        """Return the next line without consuming it; ``""`` at the end."""
        if self._ahead is None:
            try:
                self._ahead = self._read()
            except StopIteration:
                return ""
        return self._ahead

    def chunk(self) -> list[bytes]:
        """Return whole lines that come next without consuming them, blank ones too.

        Only those at hand: none where one was peeked at, or where the next is long.
        """
        if self._ahead is not None:
            return []
        try:
            with _reading:
                held = self._file.peek(1)[:_CHUNK_BYTES]
        except Defect:
            self.number += 1  # of the line that cannot be read
            raise
        return BytesIO(held[: held.rfind(b"\n") + 1]).readlines()

    def skip(self, chunk: list[bytes]) -> None:
        """Consume what ``chunk`` returned."""
        self._file.read(sum(map(len, chunk)))
        self.number += len(chunk)
        self._report_position()

    def rest(self) -> str:
        """Return all that is left, of one document."""
        begin = self._ahead or ""
        self._ahead = None
        with _reading:
            content = self._file.read(DOCUMENT_BYTES + 1)
        text = _decode(content)
        if len(begin) + len(text) > DOCUMENT_BYTES:
            raise Defect(
                f"the document is larger than {DOCUMENT_BYTES // 2**20} MiB, and is read as a "
                "whole: write one request a line"
            )
        return begin + text

    def piece(self, least_bytes: int = 0) -> str:
        """Return what comes next of one document, lines or parts of them; ``""`` at the end."""
        if self._ahead is not None:
            line, self._ahead = self._ahead, None
            return line
        self._report_position()
        with _reading:
            content = self._file.read(max(least_bytes, _PIECE_BYTES))
        try:
            return self._decoder.decode(content, final=not content)
        except UnicodeDecodeError:
            raise _NOT_TEXT from None

    def _read(self) -> str:
        blank = 0
        while True:
            self.number += 1
            if not self.number % _WATCHED_LINES:
                self._report_position()
            with _reading:
                line = self._file.readline(_MAX_LINE_BYTES + 1)
            if not line:
                raise StopIteration
            if len(line) + blank > _MAX_LINE_BYTES:
                limit = f"longer than {_MAX_LINE_BYTES // 2**20} MiB"
                raise Defect(f"the line is {limit}, or follows too many blank ones")
            blank += max(len(line), _BLANK_BYTES)
            if self.number == 1:
                line = line.removeprefix(BOM_UTF8)
            if line and not line.isspace():
                return _decode(line)

    def _report_position(self) -> None:
        if self._watch:
            self._watch(self._raw.tell(), self._size)


def _decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _NOT_TEXT from None


class _Reading:
    """Turns what reading raises into a ``Defect``; one for all: it is entered for every line."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EOFError):
            raise Defect("the gzip data ends early: the file is truncated") from None
        if isinstance(error, OSError | zlib.error):
            raise Defect(f"the file cannot be read ({error})") from None


_reading = _Reading()


@contextmanager
def open_trace(
    path: Path, buffer_bytes: int = DEFAULT_BUFFER_SIZE, watch: Watch | None = None
) -> Iterator[TraceLines]:
    """Open a trace; a ``Defect`` inside the block leaves it as a ``TraceError`` with its line."""
    try:
        file = open_regular(path, buffer_bytes)
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror}).") from None
    with file:
        lines = TraceLines(file, watch)
        try:
            yield lines
        except Defect as defect:
            raise TraceError(f"{path}:{lines.number}: {defect}.") from None


@dataclass(frozen=True, slots=True)
class TimedFields:
    """Names of the fields of a ``timed`` trace; ``ids`` may be missing from its lines.

    Attributes:
        time: Arrival.
        input: Prompt length in tokens.
        output: Generated length in tokens.
        ids: Block ids of the prompt.
    """

    time: str = "timestamp"
    input: str = "input_length"
    output: str = "output_length"
    ids: str = "hash_ids"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the formats that need them.

    Attributes:
        fields: Names in a ``timed`` trace.
        time_unit: Unit of its arrivals.
        id_tokens: Tokens that one of its ids stands for; None if it has no ids.
        stagger_s: Seconds from the start of one conversation of a ``weka`` folder to the next.
        any_order: Take requests that arrive before the one above them: their times do not count,
            or they are yet to be sorted.
        watch: Hears how many bytes of how many have been read.
        stores: Take a trace of what a server stored, which has no hit rate.
    """

    fields: TimedFields = TimedFields()
    time_unit: str = "s"
    id_tokens: int | None = None
    stagger_s: float = 0.0
    any_order: bool = False
    watch: Watch | None = None
    stores: bool = False


DEFAULTS = ReadOptions()
