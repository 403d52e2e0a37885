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
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BufferedReader
from math import inf
from pathlib import Path
from threading import Event as Stop
from time import monotonic
from typing import Any

from pydantic_core import from_json

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.files import check_parts, open_regular, unpack
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
_HEAD_BYTES = 2**12  # by which a log is known again
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(slots=True)
class _Log:
    """Reading position in a log."""

    path: Path
    at: int = 0  # bytes read, of what a packed one holds
    name: int | None = None  # of the first of them; None where it is not known
    head: bytes = b""  # these
    state: tuple[int, int] = (-1, 0)  # bytes on disk and time of change, as it was read last
    skipped: int = 0  # bytes of a line that is too long
    broken: str = ""  # why a gzip was not read to its end


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
        self._logs: dict[int, _Log] = {}  # by inode: a log may get another name
        self._open: dict[int, BufferedReader] = {}
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
        broken = {log.path.name: log.broken for log in self._logs.values() if log.broken}
        for name, why in broken.items() if not self._follow else ():
            self._warn(f"--requests {self._path}: {name}: no whole gzip ({why})")
        if not self._rows and (self._lines or (broken and not self._follow)):
            raise TraceError(
                f"--requests {self._path}: {counted(self._lines, 'line')} read, and none is of a "
                "log of requests that record knows (dsv4kv record --help names them): name "
                "another log, or turn on the server's."
            )

    def _read(self, stop: Stop) -> None:
        """Read what is new; ``TimeoutError`` where that takes too long after a stop."""
        there = dict[int, Path]()
        for path in sorted(self._path.iterdir()) if self._path.is_dir() else [self._path]:
            with suppress(OSError):  # just deleted
                found = path.stat()
                if stat.S_ISREG(found.st_mode):
                    there[found.st_ino] = path
        for inode in self._open.keys() - there.keys():  # rotated or deleted
            self._read_log(inode, stop, last=True)
            file = self._open.pop(inode)
            if not os.fstat(file.fileno()).st_nlink:
                del self._logs[inode]  # what has its inode next is another
            file.close()
        for inode, path in there.items():
            log = self._logs.get(inode) or self._recall(inode, path)
            self._logs[inode], log.path = log, path
            self._read_log(inode, stop, last=not self._follow)
            if len(self._open) > _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()

    def _recall(self, inode: int, path: Path) -> _Log:
        """A log that is new to this process, read as far as an earlier one did."""
        place = self._recording.place("requests", self._source_of(path))
        if not isinstance(place, list) or place[0] != inode:
            place = self._renamed.get(inode)
        if place is None:
            return _Log(path)
        self._rows += 1  # rows of it were written before
        return _Log(path, place[1], *place[2:])

    def _read_log(self, inode: int, stop: Stop, *, last: bool) -> None:
        log = self._logs[inode]
        source = self._source_of(log.path)
        for line in self._lines_of(inode, log, last=last):
            if stop.is_set():
                self._end_s = min(self._end_s, monotonic() + LAST_S)
                if monotonic() >= self._end_s:
                    raise TimeoutError
            row = read_line(line.decode("utf-8", "replace"), self._veil)
            self._lines += 1
            if row is not None:
                self._rows += 1
                place = {"source": source, "place": [inode, log.at, log.name]}
                self._recording.write("requests", row | place)

    def _lines_of(self, inode: int, log: _Log, *, last: bool) -> Iterator[bytes]:
        """New whole lines, if it has changed; with ``last`` also an unfinished one.

        Raises ``TraceError`` for a line that no log has.
        """
        try:
            known = self._open.get(inode)
            found = os.fstat(known.fileno()) if known else log.path.stat()
            state = found.st_size, found.st_mtime_ns
            if found.st_ino != inode or (state == log.state and not last):
                return
            file = self._open[inode] = known or open_regular(log.path)
        except (FileNotFoundError, IsADirectoryError):  # it is a file no more, or not yet
            return
        log.state, log.broken = state, ""
        try:
            file.seek(0)
            content = unpack(file)
            log.head = content.read(min(log.at, _HEAD_BYTES))
            is_same = log.name in (None, self._veil.name(log.head))
            if not is_same or (content is file and state[0] < log.at):
                log.at, log.head = 0, b""  # it was emptied, or another was given its inode
            content.seek(log.at)
            while line := content.readline(_MOST_BYTES):
                ended, is_part = line.endswith(b"\n"), len(line) == _MOST_BYTES
                if not (ended or is_part or last):
                    return
                log.at += len(line)
                if len(log.head) < _HEAD_BYTES:
                    log.head += line[: _HEAD_BYTES - len(log.head)]
                    log.name = self._veil.name(log.head)
                if log.skipped or (is_part and not ended):
                    log.skipped = 0 if ended else log.skipped + len(line)
                    line = b""
                if log.skipped > _LONGEST_LINE:
                    raise TraceError(
                        f"--requests {self._path}: a line is longer than 1 GiB, so this is no "
                        "log: name another."
                    )
                yield line
        except _BROKEN as error:  # its end has not been written yet, or it is a bomb
            log.broken = str(error)

    def _source_of(self, path: Path) -> str:
        return f"{self._name}:{self._veil.name(path.name)}"
