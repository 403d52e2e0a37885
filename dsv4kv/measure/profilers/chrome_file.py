"""Reads a Chrome trace event by event: as objects, a million events take gigabytes."""

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from pydantic_core import from_json

from dsv4kv.errors import ProfileError
from dsv4kv.files import explain, open_regular

Event = dict[str, Any]

_CHUNK = 1 << 18
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_LONGEST = 1 << 24  # characters before the first event, or of one
_BETWEEN = re.compile(r"[\s,]*")
_WHOLE = re.compile(r'(\})\s*,\s*\{\s*"(?:ph|cat|name|pid|tid|ts)"')  # and the next one begins
_TAIL = 1 << 16  # characters at the end of a chunk in which the last whole event is looked for
_CLOSED = "\n  }"  # an event's end in torch's own layout, in which strings have no line ends
_NO_JSON = re.compile(r"(:\s*)-?(?:inf|nan)\b(?=\s*[,}\]])")  # as C++ writes it
_PACKED = 100  # characters of a byte at most: traces have about 20
_GZIP = b"\x1f\x8b"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A text file, packed or not.

    Raises:
        ProfileError: It cannot be opened, or is no file.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        raise ProfileError(
            f"{path} cannot be read ({error.strerror}): name a Chrome trace, .json or .json.gz."
        ) from None
    with file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        raw = gzip.GzipFile(fileobj=file) if packed else file
        buffer = io.BufferedReader(raw)
        with io.TextIOWrapper(buffer, encoding="utf-8-sig", errors="replace") as text:
            yield text


class ChromeFile:
    """A Chrome trace: iterating gives the events.

    Attributes:
        around: The text before the events, and after them once all are read.
        broken: Events that are no JSON: torch writes quotes in names of ranges as they are.

    Raises:
        ProfileError: While iterating: it is no Chrome trace, or is cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.around = ""
        self.broken = 0
        self._left = 0

    def __iter__(self) -> Iterator[Event]:
        with open_text(self.path) as file:
            self._left = _PACKED * os.fstat(file.fileno()).st_size + _LONGEST
            try:
                yield from self._events(file, self._skip_head(file))
            except (RecursionError, ValueError) as error:
                raise ProfileError(f"{self.path} has {explain(error)}.") from None
            except (OSError, EOFError, zlib.error) as error:
                raise ProfileError(f"{self.path} is damaged or cut short ({error}).") from None

    def _skip_head(self, file: TextIO) -> str:
        text = ""
        while chunk := self._read(file):
            text += chunk
            if text.lstrip().startswith("["):  # a list of events alone is a trace, too
                return text.lstrip()[1:]
            if found := _EVENTS.search(text):
                self.around = text[: found.start()]
                return text[found.end() :]
            if len(text) > _LONGEST:
                break
        raise ProfileError(
            f"{self.path} has no traceEvents: it is no Chrome trace, which torch.profiler "
            "writes with export_chrome_trace."
        )

    def _events(self, file: TextIO, text: str) -> Iterator[Event]:
        decode, at, fresh = json.JSONDecoder(strict=False).raw_decode, 0, True
        while True:
            if fresh:
                whole, at = _decode_together(text)
                yield from whole
                fresh = False
            between = _BETWEEN.match(text, at)
            assert between is not None  # it fits nothing, too
            at = between.end()
            if text.startswith("]", at):
                self.around += text[at:] + self._read(file)
                return
            try:
                event, at = decode(text, at)
            except json.JSONDecodeError:
                end = _end_of_event(text, at)
                if end < 0:
                    text, fresh = self._more(file, text[at:]), True
                    continue
                event, at = self._mended(text[at:end]), end
            if isinstance(event, dict):
                yield event

    def _read(self, file: TextIO) -> str:
        chunk = file.read(_CHUNK)
        self._left -= len(chunk)
        if self._left < 0:
            raise ProfileError(
                f"{self.path} unpacks to over {_PACKED} times its size: no trace does."
            )
        return chunk

    def _mended(self, text: str) -> Event | None:
        """A whole event that is no JSON, its numbers made so; None where that does not help."""
        try:
            event: Event = json.loads(_NO_JSON.sub(r"\1NaN", text), strict=False)
            return event
        except json.JSONDecodeError:
            self.broken += 1
            return None

    def _more(self, file: TextIO, text: str) -> str:
        """Text whose first event has no end yet: with numbers made JSON, or more of the file."""
        mended = _NO_JSON.sub(r"\1NaN", text)
        if mended != text:
            return mended
        chunk = self._read(file)
        if not chunk or len(text) > _LONGEST:
            raise ProfileError(
                f"{self.path} has an event that does not end: it is damaged or cut short."
            )
        return text + chunk


def _decode_together(text: str) -> tuple[list[Event], int]:
    """All events at once that are known to be whole, and where the last of them ends.

    None, and 0, where their ends are not clear or one is no JSON: then they are read one by one.
    """
    ends = [found.end(1) for found in _WHOLE.finditer(text, max(0, len(text) - _TAIL))]
    if not ends:
        return [], 0
    try:
        events = from_json("[" + text[: ends[-1]].lstrip(", \t\r\n") + "]")
    except ValueError:
        return [], 0
    return [event for event in events if isinstance(event, dict)], ends[-1]


def _end_of_event(text: str, at: int) -> int:
    """Where an event in torch's own layout ends; -1 if it has another layout, or no end."""
    end = text.find(_CLOSED, at) if text.startswith("{\n", at) else -1
    return end + len(_CLOSED) if end > 0 and text.count('"ph"', at, end) == 1 else -1
