"""Reads a Chrome trace event by event: as objects, a million events take gigabytes."""

import gzip
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from dsv4kv.errors import ProfileError

Event = dict[str, Any]

_CHUNK = 1 << 20
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_LONGEST = 1 << 24  # characters before the first event, or of one
_BETWEEN = re.compile(r"[\s,]*")
_GZIP = b"\x1f\x8b"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A text file, packed or not.

    Raises:
        ProfileError: It cannot be opened.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ProfileError(
            f"{path} cannot be read ({error.strerror}): name a Chrome trace, .json or .json.gz."
        ) from None
    with file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        raw = gzip.GzipFile(fileobj=file) if packed else file
        with io.TextIOWrapper(io.BufferedReader(raw), encoding="utf-8") as text:
            yield text


class ChromeFile:
    """A Chrome trace: ``head`` is the text before the events, and iterating gives the events.

    Raises:
        ProfileError: While iterating: it is no Chrome trace, or is cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = ""

    def __iter__(self) -> Iterator[Event]:
        with open_text(self.path) as file:
            try:
                yield from self._events(file, self._skip_head(file))
            except (OSError, EOFError, UnicodeDecodeError) as error:
                raise ProfileError(f"{self.path} is damaged or cut short ({error}).") from None

    def _skip_head(self, file: TextIO) -> str:
        text = ""
        while chunk := file.read(_CHUNK):
            text += chunk
            if text.lstrip().startswith("["):  # a list of events alone is a trace, too
                return text.lstrip()[1:]
            if found := _EVENTS.search(text):
                self.head = text[: found.start()]
                return text[found.end() :]
            if len(text) > _LONGEST:
                break
        raise ProfileError(
            f"{self.path} has no traceEvents: it is no Chrome trace, which torch.profiler "
            "writes with export_chrome_trace."
        )

    def _events(self, file: TextIO, text: str) -> Iterator[Event]:
        decode, at = json.JSONDecoder().raw_decode, 0
        while True:
            found = _BETWEEN.match(text, at)
            at = found.end() if found else at
            if text[at : at + 1] == "]":
                return
            try:
                event, at = decode(text, at)
            except json.JSONDecodeError:
                chunk = file.read(_CHUNK)
                if not chunk or len(text) - at > _LONGEST:
                    raise ProfileError(
                        f"{self.path} has an event that does not end: it is damaged or cut short."
                    ) from None
                text, at = text[at:] + chunk, 0
                continue
            if isinstance(event, dict):
                yield event
