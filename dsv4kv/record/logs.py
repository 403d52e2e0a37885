"""Logs of requests of engines and tools, read while they grow.

A row has its line's ``id``, ``arrival_s`` and other times since 1970, lengths in tokens,
``cached_tokens``, ``session``, and ``ids`` of ``grain`` tokens, names veiled as numbers. Lines of
one request are joined later by its ``id``.

Read in SGLang 0.5.23 (``request_logger.py``, ``request_metrics_exporter.py``), vLLM 0.33
(``request_logger.py``), LMCache 0.5.6 (``lookup_hash.py``) and in the description of Dynamo's
``dynamo.request.trace.v1``.

A log is a file or a folder. The position in each file is written with its rows, so that a
continued recording reads every line once. A rotated file is read to its end first.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from threading import Event as Stop
from time import monotonic
from typing import Any, BinaryIO

from pydantic_core import from_json

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.files import check_parts, open_regular
from dsv4kv.record import Veil
from dsv4kv.record.folder import Record, Recording, check_row
from dsv4kv.record.run import LAST_S
from dsv4kv.units import counted


class _Other(ValueError):
    """The line has another format."""


def read_line(line: str, veil: Veil) -> Record | None:
    """The row of a line of any format; None if it has no request."""
    for mark, read in LOGS.values():
        if mark in line:
            with suppress(Exception):  # anything may have the mark in it
                row = read(line, veil)
                known = {name: value for name, value in row.items() if value is not None}
                return check_row("requests", known)
    return None


def _sglang(line: str, veil: Veil) -> Record:
    """``--log-requests --log-requests-format json``; ids from level 3 on."""
    record = _object(line)
    asked = record["obj"]
    row = _names(veil, record["rid"], asked.get("session_id"))
    at_s = datetime.fromisoformat(record["timestamp"]).timestamp()  # in this machine's time zone
    if record["event"] == "request.received":
        return row | {"arrival_s": at_s} | _prompt(asked, veil)
    if record["event"] != "request.finished":
        raise _Other
    info = record["out"]["meta_info"]
    return row | _finished_at(info, at_s) | _prompt(asked, veil)


def _sglang_metrics(line: str, veil: Veil) -> Record:
    """``--export-metrics-to-file-dir``: a line for every request that has ended."""
    info = _object(line)
    asked = from_json(info["request_parameters"])
    row = _names(veil, info["id"], asked.get("session_id"))
    return row | _finished_at(info, None) | _prompt(asked, veil)


def _finished_at(info: Mapping[str, Any], end_s: float | None) -> Record:
    latency_s = info.get("e2e_latency")
    arrival_s = info.get("request_received_ts")
    if arrival_s is None and end_s is not None and latency_s is not None:
        arrival_s = end_s - latency_s
    last_s = arrival_s + latency_s if arrival_s is not None and latency_s is not None else end_s
    first_s = info.get("first_token_latency")
    return {
        "arrival_s": _optional(arrival_s, float),
        "first_s": None if first_s is None or arrival_s is None else arrival_s + float(first_s),
        "last_s": _optional(last_s, float),
        "input_tokens": _tokens(info["prompt_tokens"]),
        "output_tokens": _tokens(info["completion_tokens"]),
        "cached_tokens": _optional(info.get("cached_tokens"), _tokens),
        "cached_by": cached_by(info.get("cached_tokens_details")),
    }


def cached_by(details: Any) -> dict[str, int] | None:
    """Cached tokens by where they were found, as SGLang reports them."""
    if not isinstance(details, dict):
        return None
    known = ("device", "host", "storage")
    return {name: _tokens(details[name]) for name in known if details.get(name) is not None}


_AHEAD = timedelta(days=1)  # of a log's clock: another host's, or of another time zone
_VLLM_BEGIN = re.compile(r"(\d\d-\d\d \d\d:\d\d:\d\d) \[[^]]{,200}\] ")
_VLLM_BEGIN_CHARS = 1_000
_COLOUR = re.compile(r"\x1b\[[\d;]{,20}m")
_VLLM_ASKED = re.compile(r"(?:Received request|Request) (\S{,500}?)(?: details)?: prompt: ")
_VLLM_PART = re.compile(r"^(cmpl-.+(?=-0$)|(?:resp_|chatcmpl-).+(?=_0$)).*")
_VLLM_IDS = ", prompt_token_ids: ["
_VLLM_ANSWERED = re.compile(
    r"Generated response (\S+)(?: \(streaming complete\))? details: "
    r"output_token_ids: [\[(]([\d, ]*)[\])]\s*"
)


def _vllm(line: str, veil: Veil) -> Record:
    """``--enable-log-requests`` with ``VLLM_LOGGING_LEVEL=DEBUG``: tokens asked, then answered."""
    line = _COLOUR.sub("", line)
    begun = _VLLM_BEGIN.search(line, 0, _VLLM_BEGIN_CHARS)  # what follows may quote another
    if begun is None:
        raise _Other
    if asked := _VLLM_ASKED.match(line, begun.end()):
        _, named, after = line[asked.end() - 2 :].rpartition(_VLLM_IDS)  # the text is before it
        ids, closed, _ = after.partition("]")
        if not named or not closed:
            raise _Other
        row: Record = {"arrival_s": _month_clock(begun[1])}
        row |= _prompt({"input_ids": [int(one) for one in ids.split(",") if one.strip()]}, veil)
    elif asked := _VLLM_ANSWERED.match(line, begun.end()):
        tokens = [one for one in asked[2].split(",") if one.strip()]
        row = {"last_s": _month_clock(begun[1]), "output_tokens": len(tokens)}
    else:
        raise _Other
    # logs name the first part of an answer, ``cmpl-7-0`` or ``resp_7_0``
    return row | {"id": veil.name(_VLLM_PART.sub(r"\1", asked[1]))}


def _dynamo(line: str, veil: Veil) -> Record:
    """``DYN_REQUEST_TRACE=1``: lengths and chained hashes of blocks."""
    record = _object(line)
    if "schema" not in record:  # some sinks wrap it
        record = next(each for each in record.values() if isinstance(each, dict))
    if record["event_type"] != "request_end":
        raise _Other
    request = record["request"]
    replay, agent = request["replay"], record.get("agent_context") or {}
    size, hashes = _tokens(replay["trace_block_size"]), replay["input_sequence_hashes"]
    return {
        **_names(veil, request["request_id"], agent.get("session_id")),
        "arrival_s": float(request["request_received_ms"]) / 1e3,
        "last_s": float(record["event_time_unix_ms"]) / 1e3,
        "output_tokens": _tokens(request["output_tokens"]),
        "cached_tokens": _optional(request.get("cached_tokens"), _tokens),
        **_hashed(_tokens(replay["input_length"]), size, hashes, veil),
    }


def _lmcache(line: str, veil: Veil) -> Record:
    """Lookup hashes: chained hashes of the chunks that were looked up."""
    record = _object(line)
    return {
        **_names(veil, record["request_id"]),
        "arrival_s": float(record["timestamp"]),
        **_hashed(
            _tokens(record["seq_len"]), _tokens(record["chunk_size"]), record["chunk_hashes"], veil
        ),
    }


LOGS: dict[str, tuple[str, Callable[[str, Veil], Record]]] = {
    "sglang": ('"event": "request.', _sglang),
    "sglang-metrics": ('"request_parameters"', _sglang_metrics),
    "vllm": ("token_ids: ", _vllm),
    "dynamo": ("dynamo.request.trace.", _dynamo),
    "lmcache": ('"chunk_hashes"', _lmcache),
}
"""Formats of lines: a mark that is in each, and what makes a row or raises; the first that can."""


def _object(line: str) -> dict[str, Any]:
    text = line[line.index("{") :]
    check_parts(text)
    try:
        record = from_json(text)
    except ValueError:  # half a character, which a client may send
        record = json.loads(text)
    if not isinstance(record, dict):
        raise _Other
    return record


def _names(veil: Veil, request: Any, session: Any = None) -> Record:
    """A client's names of a request and its session, whatever JSON they are."""
    known = {"id": request, "session": session}
    return {field: veil.name(name) for field, name in known.items() if name is not None}


def _prompt(asked: Mapping[str, Any], veil: Veil) -> Record:
    tokens = asked.get("input_ids")
    if not isinstance(tokens, list) or not tokens or set(map(type, tokens)) != {int}:
        return {}
    apart = [asked.get(name) for name in ("lora_path", "lora_id", "cache_salt", "extra_key")]
    extra = apart if any(each is not None for each in apart) else None
    ids = veil.prompt(tokens, extra)
    return {"input_tokens": len(tokens), "ids": ids, "grain": veil.grain}


def _hashed(tokens: int, size: int, hashes: Any, veil: Veil) -> Record:
    """Ids of a prompt by its blocks' hashes, without a partial last block."""
    if not size or not isinstance(hashes, list) or len(hashes) < tokens // size:
        raise _Other
    ids = [veil.name(one) for one in hashes[: tokens // size]]
    return {"input_tokens": tokens, "ids": ids, "grain": size}


def _month_clock(text: str) -> float:
    """Seconds since 1970 of a local time without a year: the last such day."""
    latest = datetime.now(UTC).astimezone() + _AHEAD
    found = datetime.strptime(f"{latest.year}-{text}", "%Y-%m-%d %H:%M:%S").astimezone()
    return (found if found <= latest else found.replace(year=latest.year - 1)).timestamp()


def _tokens(value: Any) -> int:
    if type(value) not in {int, float} or not 0 <= value < 2**31 or value != int(value):
        raise _Other
    return int(value)


def _optional(value: Any, kind: Callable[[Any], Any]) -> Any:
    """A field that a row may lack; None where it is no such number."""
    with suppress(TypeError, ValueError):
        return None if value is None else kind(value)
    return None


_POLL_S = 0.3
_MOST_OPEN = 64  # logs of a folder; others are opened again when they change
_MOST_BYTES = 2**26  # of a line; a longer one is about no request, and left out
_LONGEST_LINE = 2**30  # of what is a log at all
_PACKED = 100  # bytes of one on disk at most: logs have about 10
_SPARED_BYTES = 2**24  # that a small log may have in any case
_HEAD_BYTES = 2**12  # by which a log is known again
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)
_LINE_BYTES = 2**6  # that any line counts: a thousand empty ones take one byte


class RequestLog:
    """A source of requests: a log or a folder of logs."""

    def __init__(
        self,
        number: int,
        path: Path,
        recording: Recording,
        veil: Veil,
        *,
        follow: bool = True,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        """``follow``: wait for more until stopped; raises ``ConfigError``.

        ``warn`` is given a sentence about what was not read.
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
        self._left: dict[Path, tuple[int, int]] = {}  # states of those that are closed
        self._places: dict[int, _Place] = {}  # by inode: a log may get another name
        earlier = recording.places("requests", f"{self._name}:")
        self._renamed = {each[0]: each for each in earlier if isinstance(each, list)}
        self._lines = self._rows = 0
        self._warn, self._end_s = warn, inf

    def run(self, stop: Stop) -> None:
        """Read the log, then follow it; raises ``TraceError``."""
        try:
            self._read(stop)
            while self._follow and not stop.wait(_POLL_S):
                self._read(stop)
            if self._follow:
                self._read(stop)
        except TimeoutError:
            self._warn(f"--requests {self._path}: not read to its end; the same command reads on.")
        finally:
            for file in self._open.values():
                file.close()
        broken = [path.name for path, file in self._open.items() if file.broken]
        if broken and not self._follow:
            self._warn(f"--requests {self._path}: {', '.join(broken)}: no whole gzip")
        if not self._rows and (self._lines or (broken and not self._follow)):
            raise TraceError(
                f"--requests {self._path}: {counted(self._lines, 'line')} read, and none is of a "
                "log of requests that record knows (dsv4kv record --help names them): name "
                "another log, or turn on the server's."
            )

    def _read(self, stop: Stop) -> None:
        """Read what is new; ``TimeoutError`` where that takes too long after a stop."""
        is_folder = self._path.is_dir()
        listed = sorted(self._path.iterdir()) if is_folder else [self._path]
        for path in listed:
            source = f"{self._name}:{self._veil.name(path.name)}"
            if path in self._open or self._opens(path, source):
                self._read_file(path, source, stop)
            if len(self._open) > _MOST_OPEN:
                oldest = next(iter(self._open))
                file = self._open.pop(oldest)
                self._left[oldest] = file.state
                file.close()
        for path in self._open.keys() - {*listed} if is_folder else ():  # deleted
            self._read_file(path, f"{self._name}:{self._veil.name(path.name)}", stop)
            self._open.pop(path).close()

    def _opens(self, path: Path, source: str) -> bool:
        try:
            if not path.is_file() or self._left.get(path) == _state(path.stat()):
                return False
            before = self._recording.place("requests", source)
            inode = path.stat().st_ino
            if before is None or before[0] != inode:
                before = self._renamed.get(inode, before)
            self._open[path] = _Growing(path, self._veil, self._places, before)
        except FileNotFoundError:  # just deleted
            return False
        self._rows += before is not None  # rows of it were written before
        return True

    def _read_file(self, path: Path, source: str, stop: Stop) -> None:
        file = self._open[path]
        for line in file.lines(last=not self._follow):
            if stop.is_set():
                self._end_s = min(self._end_s, monotonic() + LAST_S)
                if monotonic() >= self._end_s:
                    raise TimeoutError
            row = read_line(line.decode("utf-8", "replace"), self._veil)
            self._lines += 1
            if row is not None:
                self._rows += 1
                place = {"source": source, "place": file.place}
                self._recording.write("requests", row | place)


def _state(found: os.stat_result) -> tuple[int, int]:
    """What changes where a log grows, or is another."""
    return found.st_ino, found.st_size


@dataclass(slots=True)
class _Place:
    at: int = 0  # bytes read
    head: bytes = b""  # the first of them, by which a log is known again


class _Growing:
    def __init__(
        self, path: Path, veil: Veil, places: dict[int, _Place], place: Any = None
    ) -> None:
        """``places``: by inode, what was read; ``place``: what was by an earlier process."""
        self._path, self._veil, self._places = path, veil, places
        self._skipped = 0  # bytes of a line that is too long
        self._unpacked = self._believed = 0  # bytes read, and how many a log of this size may have
        self._begin(open_regular(path), place)

    @property
    def place(self) -> list[int]:
        """Inode, bytes read, and a name of the first of them."""
        return [self._inode, self._place.at, self._veil.name(self._place.head)]

    def lines(self, *, last: bool) -> Iterator[bytes]:
        """New whole lines; with ``last`` also an unfinished one. Raises ``TraceError``."""
        head, is_plain = self._place.head, self._file is self._raw
        emptied = is_plain and os.pread(self._raw.fileno(), len(head), 0) != head
        if not emptied:
            yield from self._whole(last=last)
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return
        is_other = found.st_ino != self._inode
        emptied |= is_plain and not is_other and found.st_size < self._place.at
        if is_other or emptied:
            if not emptied:
                yield from self._whole(last=True)
            try:
                raw = open_regular(self._path)
            except OSError:  # it is a file no more, or not yet
                return
            self.close()
            if emptied:
                self._places.pop(self._inode, None)
            self._begin(raw)
            yield from self._whole(last=last)

    def close(self) -> None:
        """Close the file; where it was deleted, what has its inode next is another."""
        if not os.fstat(self._raw.fileno()).st_nlink:
            self._places.pop(self._inode, None)
        self._raw.close()

    def _begin(self, raw: BinaryIO, place: Any = None) -> None:
        self._raw = raw
        is_packed = self._path.suffix == ".gz"
        self._file = gzip.GzipFile(fileobj=raw) if is_packed else raw
        self._inode = inode = os.fstat(raw.fileno()).st_ino
        is_known = isinstance(place, list) and place[0] == inode
        known = self._places.get(inode, _Place(place[1]) if is_known else _Place())
        self._unpacked, self.broken, self.state = 0, False, (inode, 0)  # as it is read
        head = b""
        with suppress(*_BROKEN):
            head = self._file.read(min(known.at, _HEAD_BYTES))
        if inode in self._places:
            is_same = head == known.head
        else:
            is_same = not is_known or place[2:] in ([], [self._veil.name(head)])
        if not is_same:  # another log, which was given the inode again
            known, head = _Place(), b""
        known.head = head
        self._place = self._places[inode] = known

    def _whole(self, *, last: bool) -> Iterator[bytes]:
        state = _state(os.fstat(self._raw.fileno()))
        if self.broken and state == self.state:  # unpacking it again finds no more
            return
        self.state = state
        while True:
            try:
                self._file.seek(self._place.at)
                line = self._file.readline(_MOST_BYTES)
                self.broken = False
            except _BROKEN:  # its end has not been written yet
                self.broken = True
                return
            ended, is_part = line.endswith(b"\n"), len(line) == _MOST_BYTES
            if not line or not (ended or is_part or last):
                return
            self._place.at += len(line)
            self._place.head += line[: _HEAD_BYTES - len(self._place.head)]
            self._unpacked += max(len(line), _LINE_BYTES)
            if self._skipped or (is_part and not ended):
                self._skipped = 0 if ended else self._skipped + len(line)
                line = b""
            self._check()
            yield line

    def _check(self) -> None:
        if self._unpacked > self._believed:
            self._believed = _PACKED * os.fstat(self._raw.fileno()).st_size + _SPARED_BYTES
        why = ""
        if self._unpacked > self._believed:
            why = f"it unpacks to over {_PACKED} times its size, which no log does"
        elif self._skipped > _LONGEST_LINE:
            why = "a line is longer than 1 GiB, so this is no log"
        if why:
            raise TraceError(f"--requests {self._path}: {why}: name another.")
