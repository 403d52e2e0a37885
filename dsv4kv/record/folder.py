"""The folder of a recording: streams of JSON lines that only grow, safe within a second.

    notes.000000.jsonl       starts, stops, the server's settings, gaps of the recording
    events.000000.jsonl      batches of KV events, and gaps in their sequence
    requests.000000.jsonl    requests as a proxy or a log saw them
    metrics.000000.jsonl     samples of the server's counters
    salt                     the secret; without it, no guess at a prompt can be tested

Lines are written and synced once a second, beside the sources, which a slow disk must not keep: a
kill loses no more. The torn last line is cut when the recording is opened again, and the time in
between is noted as a gap. A large file is followed by the next, whose first line has the position
of every source, so that only the last file is read to continue.
"""

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from time import time
from typing import Any, Self, TypeAlias

from pydantic_core import SchemaValidator, from_json
from pydantic_core import core_schema as cs

from dsv4kv.errors import TraceError
from dsv4kv.files import check_parts, make_folder, open_regular, read_document, replacing
from dsv4kv.traces.files import MAX_TOKENS, MOST_S

STREAMS = ("notes", "events", "requests", "metrics")
ROTATE_BYTES = 2**28
_SALT = "salt"
_SALT_BYTES = 32
WHERE = "where"
_LINE_BYTES = 2**26  # of a row
_WAITING_BYTES = 2**26  # of lines not written yet; beyond them a source waits for the disk
_CUT_BYTES = 2**20  # read at once while the end of the last whole line is looked for
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

Record = dict[str, Any]

MOST_TOKENS = 2**24
"""Of a prompt or an answer; who counts more counts something else."""
MOST_VALUE = 2.0**63
"""Of a counter or a gauge."""

_Schema: TypeAlias = cs.CoreSchema


def _fields(required: Mapping[str, _Schema], **others: _Schema) -> _Schema:
    fields = {name: cs.typed_dict_field(schema) for name, schema in required.items()}
    fields |= {name: cs.typed_dict_field(each, required=False) for name, each in others.items()}
    return cs.typed_dict_schema(fields, extra_behavior="allow")


_TEXT, _TIME = cs.str_schema(), cs.float_schema(ge=-MOST_S, le=MOST_S)
_COUNT, _SIZE = (cs.int_schema(ge=low, le=MAX_TOKENS) for low in (0, 1))
_TOKENS = cs.int_schema(ge=0, le=MOST_TOKENS)
_ID = cs.int_schema(ge=-(2**63), lt=2**63)
_IDS, _MAYBE = cs.list_schema(_ID, max_length=2**21), cs.nullable_schema(_ID)
_NUMBER = cs.float_schema(ge=-MOST_VALUE, le=MOST_VALUE)
_WHERE = cs.union_schema([_ID, _TIME])
_PLACE = cs.union_schema([cs.list_schema(_WHERE, min_length=2, max_length=3), _WHERE])
_STORED = {"stored": _IDS, "parent": _MAYBE, "size": _COUNT, "chain": cs.bool_schema()}
_OF_ALL = {"medium": cs.nullable_schema(_TEXT), "group": cs.nullable_schema(_COUNT)}
_EVENT = cs.union_schema(
    [
        _fields(_STORED, **_OF_ALL, grain=_SIZE, ids=_IDS, session=_MAYBE),
        _fields({"removed": _IDS}, **_OF_ALL),
        _fields({"cleared": cs.bool_schema()}),
    ],
    mode="left_to_right",
)
_AT = {"at": _TIME}
_OF_SOURCE = _AT | {"source": _TEXT}
_SCHEMAS = {
    "notes": _fields(_AT, from_s=_TIME, settings=cs.dict_schema(_TEXT, _TEXT)),
    "events": _fields(
        _OF_SOURCE,
        place=_PLACE,
        ts=_TIME,
        events=cs.list_schema(_EVENT),
        **dict.fromkeys(("first", "last", "rank"), _ID),
    ),
    "requests": _fields(
        _AT,
        source=_TEXT,
        place=_PLACE,
        **dict.fromkeys(("arrival_s", "first_s", "last_s"), _TIME),
        **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens"), _TOKENS),
        cached_by=cs.dict_schema(_TEXT, _TOKENS),
        status=_COUNT,
        ids=_IDS,
        grain=_SIZE,
        ids_of=_TEXT,
        session=_ID,
        id=cs.union_schema([_ID, _TEXT]),
        end=_TEXT,
    ),
    WHERE: _fields({"places": cs.dict_schema(_TEXT, _PLACE)}),
    "metrics": _fields(_OF_SOURCE, values=cs.dict_schema(_TEXT, _NUMBER)),
}
_OF_GAP = {"notes": ("from_s", "at"), "events": ("first", "last")}
"""Fields of a row about a gap."""
_VALIDATORS = {name: SchemaValidator(schema) for name, schema in _SCHEMAS.items()}


def check_row(stream: str, row: Record) -> Record:
    """The row of a source, if the stream can have it; else raises ``ValueError``."""
    _VALIDATORS[stream].validate_python({"at": 0.0, "source": ""} | row)
    return row


def parse_record(stream: str, line: bytes) -> Record:
    """The record of a line; raises ``ValueError``."""
    check_parts(line.decode("latin-1"))
    record = from_json(line)
    what = record.get("what") if isinstance(record, dict) else None
    checked: Record = _VALIDATORS[WHERE if what == WHERE else stream].validate_python(record)
    needed = _OF_GAP.get(stream, ()) if what == "gap" else ()
    if not checked.keys() >= {*needed, *(("source",) if "place" in checked else ())}:
        raise ValueError("a field is missing")
    return checked


def lines_of(path: Path, at: int = 0) -> Iterator[bytes]:
    """Lines of a file from a place on; one that is longer than any row is cut."""
    with open_regular(path) as file:
        file.seek(at)
        while line := file.readline(_LINE_BYTES):
            yield line


def _line_of(record: Record) -> bytes:
    return _ENCODE(record).encode() + b"\n"


class Stream:
    """One of the streams, open at its end."""

    def __init__(self, folder: Path, name: str, rotate_bytes: int) -> None:
        """Cut a torn last line and continue after it."""
        self._folder, self._name, self._rotate_bytes = folder, name, rotate_bytes
        self._adding, self._writing = Lock(), Lock()
        self._lines = bytearray()  # not written yet
        files = segments(folder, name)
        self.places: dict[str, Any] = {}  # position of each source, by its name
        self.last_s = 0.0
        if files:
            _cut_torn_line(files[-1])
            next(filter(self._recall, reversed(files)), None)  # the last may have no line yet
        self._number = _number(files[-1]) if files else 0
        self._file, self._is_broken = self._open(), False
        self._end = os.fstat(self._file).st_size  # of the last line that is written
        if not self._end and self.places:  # it was killed between two files
            self._begin_file(self.places)

    def write(self, record: Record, *, waits: bool = True) -> bool:
        """Append a record, with the ``place`` of its ``source``; who does not wait may lose it."""
        if len(self._lines) >= _WAITING_BYTES:
            if not waits:
                return False
            self.sync()
        line = _line_of(record)
        with self._adding:
            if "place" in record:
                self.places[record["source"]] = record["place"]
            self._lines += line
        return True

    def sync(self) -> None:
        """Write all lines to the disk; ``FileNotFoundError`` where the file was deleted.

        After an ``OSError`` no more is written: what follows a torn line cannot be read.
        """
        with self._writing:
            if self._is_broken:
                return
            try:
                self._write()
            except OSError:
                self._is_broken = True
                with suppress(OSError):
                    os.ftruncate(self._file, self._end)
                raise

    def close(self) -> None:
        """Write all lines and close."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def _write(self) -> None:
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "deleted")
        with self._adding:
            lines, places = bytes(self._lines), dict(self.places)
        if not lines:
            return
        os.ftruncate(self._file, self._end)  # Ctrl-C may have come in the middle, last time
        left = memoryview(lines)
        while left:
            left = left[os.write(self._file, left) :]
        os.fsync(self._file)
        with self._adding:
            self._end += len(lines)
            del self._lines[: len(lines)]
        if self._end >= self._rotate_bytes:
            full, self._number = self._file, self._number + 1
            self._file, self._end = self._open(), 0
            os.close(full)
            self._begin_file(places)

    def _begin_file(self, places: Record) -> None:
        self._end = os.write(self._file, _line_of({"what": WHERE, "places": places}))

    def _open(self) -> int:
        path = self._folder / f"{self._name}.{self._number:06}.jsonl"
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK
        # refuses a link, and a pipe without a reader
        descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
        _sync_folder(self._folder)
        return descriptor

    def _recall(self, path: Path) -> bool:
        record = None
        for record in _records(path, last=False):
            self.last_s = record.get("at", self.last_s)
            if record.get("what") == WHERE:
                self.places |= record["places"]
            elif "place" in record:
                self.places[record["source"]] = record["place"]
        return record is not None


class Recording:
    """A recording that is being written, by this process alone.

    ``salt``: its secret. ``failure``: why nothing more is written, once it cannot be.
    """

    failure: TraceError | None = None

    def __init__(
        self,
        folder: Path,
        rotate_bytes: int = ROTATE_BYTES,
        clock: Callable[[], float] = time,
        hear: Callable[[str, Record], object] = lambda stream, record: None,
        about: Record | None = None,
    ) -> None:
        """Begin or continue a recording; raises ``TraceError``.

        ``hear`` is called with every record; ``about`` is noted at its start.
        """
        self._folder, self._clock, self._hear = folder, clock, hear
        self._piece: float | None = None
        self._settling = Lock()
        try:
            if folder.is_dir() and any(folder.iterdir()) and not (folder / _SALT).exists():
                raise TraceError(
                    f"{folder} is a folder with other files: name a new one, or one that record "
                    "made."
                )
            make_folder(folder, 0o700)
            with ExitStack() as opened:
                opened.callback(os.close, _lock(folder))
                self.salt = _salt(folder)
                self._streams = dict[str, Stream]()
                for name in STREAMS:
                    self._streams[name] = Stream(folder, name, rotate_bytes)
                    opened.callback(self._streams[name].close)
                self._note_start(about or {})
                self._opened = opened.pop_all()
        except OSError as error:
            raise _unwritable(folder, error) from None

    def write(self, stream: str, record: Record, *, waits: bool = True) -> bool:
        """Append a record, with the current time if it has none; raises ``TraceError``.

        False where the disk is so slow that who does not wait loses it.
        """
        with self._failing():
            kept = self._streams[stream].write({"at": self._clock()} | record, waits=waits)
        if kept:
            self._hear(stream, record)
        return kept

    def place(self, stream: str, source: str) -> Any:
        """Position of a source, also of an earlier process; None if it is new."""
        return self._streams[stream].places.get(source)

    def places(self, stream: str, prefix: str) -> list[Any]:
        """Positions of all sources whose names begin with ``prefix``."""
        places = self._streams[stream].places
        return [place for source, place in places.items() if source.startswith(prefix)]

    def text_piece(self, found: float | None = None) -> float | None:
        """Bytes of text that stand for the tokens of an id: the first that any proxy found."""
        with self._settling:
            if self._piece is None:
                places = self._streams["requests"].places
                known = (place for _, place in sorted(places.items()) if isinstance(place, float))
                self._piece = next(known, found)
            return self._piece

    def sync(self) -> None:
        """Write all streams to the disk; raises ``TraceError``."""
        with self._failing():
            for stream in self._streams.values():
                stream.sync()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        if self.failure:
            raise TraceError(str(self.failure))
        try:
            yield
        except OSError as error:
            self.failure = _unwritable(self._folder, error)
            raise self.failure from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(TraceError):  # said by whoever wrote before
            self.write("notes", {"what": "stop"})
        with suppress(OSError):
            self._opened.close()

    def _note_start(self, about: Record) -> None:
        notes = segments(self._folder, "notes")
        known = [record for record in _records(notes[-1], last=False) if "at" in record]
        last = known[-1:]
        sizes = [record["id_tokens"] for record in known if "id_tokens" in record][-1:]
        if sizes and "id_tokens" in about and sizes != [about["id_tokens"]]:
            raise TraceError(  # no trace has both
                f"{self._folder}: an id of it stands for {sizes[0]!r} tokens: continue it with "
                f"--id-tokens {sizes[0]!r}, or name a new folder."
            )
        seen_s = max(stream.last_s for stream in self._streams.values())
        if last:
            why = "stopped" if last[0].get("what") == "stop" else "killed"
            self.write("notes", {"what": "gap", "from_s": seen_s, "why": why})
        self.write("notes", {"what": "start"} | about)
        self.sync()


def segments(folder: Path, stream: str) -> list[Path]:
    """The files of a stream, oldest first."""
    found = folder.glob(f"{stream}.[0-9]*.jsonl")
    return sorted((path for path in found if path.suffixes[0][1:].isdecimal()), key=_number)


def is_recording(folder: Path) -> bool:
    """Whether a folder is a recording."""
    return folder.is_dir() and bool(segments(folder, "notes"))


def read_stream(folder: Path, stream: str) -> Iterator[Record]:
    """The records of a stream, in order, without a torn last line; raises ``TraceError``."""
    files = segments(folder, stream)
    for path in files:
        try:
            yield from (
                record
                for record in _records(path, last=path == files[-1])
                if record.get("what") != WHERE
            )
        except OSError as error:
            raise TraceError(f"{path}: cannot be read ({error.strerror}).") from None


def _records(path: Path, *, last: bool) -> Iterator[Record]:
    stream = path.name.partition(".")[0]
    for number, line in enumerate(lines_of(path), 1):
        try:
            record = parse_record(stream, line)
        except ValueError:
            record = None
        if record is not None and line.endswith(b"\n"):
            yield record
        elif not last or line.endswith(b"\n") or len(line) == _LINE_BYTES:
            raise TraceError(
                f"{path}:{number}: this line is damaged: take it out, and what it recorded is "
                "missing."
            )


def _number(path: Path) -> int:
    return int(path.name.split(".")[1])


def _cut_torn_line(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "r+b") as file:
        end = keep = file.seek(0, os.SEEK_END)
        while keep:
            begin = max(0, keep - _CUT_BYTES)
            file.seek(begin)
            found = file.read(keep - begin).rfind(b"\n")
            keep = begin + found + 1
            if found >= 0:
                break
            if end - keep > _LINE_BYTES:
                raise TraceError(f"{path}: its end is damaged: begin a new recording.")
        if keep < end:
            file.truncate(keep)
            os.fsync(file.fileno())


def _lock(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise TraceError(
            f"{folder} is being recorded into by another process: name another folder."
        ) from None
    return descriptor


def _salt(folder: Path) -> bytes:
    path = folder / _SALT
    if not path.exists():
        with replacing(path, 0o600) as file:
            file.write(secrets.token_bytes(_SALT_BYTES))
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(folder)
    salt = read_document(path)
    if len(salt) != _SALT_BYTES:
        raise TraceError(f"{path} is damaged: begin a new recording in another folder.")
    return salt


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(folder: Path, error: OSError) -> TraceError:
    if error.errno == errno.ENOENT:
        return TraceError(f"{folder}: its files were deleted while it was recorded: begin anew.")
    return TraceError(
        f"{folder}: cannot be recorded into ({error.strerror or error}): what was written before "
        "is kept; name a folder with room."
    )
