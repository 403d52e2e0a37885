"""Serving traces: readers and writers of the published formats, and what a trace is like.

Readers of lines stream: memory is a few lines, whatever the file's size. What must be sorted
(delta sessions, agentic conversations) or is one JSON document is held as a whole, long ids as
runs.
"""

import gzip
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from math import inf
from pathlib import Path
from typing import BinaryIO, cast

from dsv4kv.choices import TRACE_FORMATS, TRACE_LINES, choose, listed
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.files import hash_file, replacing, shipped
from dsv4kv.traces.files import (
    DEFAULTS,
    Defect,
    ReadOptions,
    json_records,
    open_trace,
    parse_object,
)
from dsv4kv.traces.formats import (
    INPUT_NAMES,
    TraceFormat,
    conversation_files,
    parse_row,
    read_weka_folder,
)
from dsv4kv.traces.paths import PathTable, collect_paths
from dsv4kv.traces.request import Request
from dsv4kv.traces.summary import TraceSummary, check_histories, summarize_batches

__all__ = [
    "FORMATS",
    "ReadOptions",
    "TraceSummary",
    "detect_format",
    "is_stores_only",
    "load_paths",
    "place_of",
    "read_placed_trace",
    "read_trace",
    "resolve_trace",
    "summarize_batches",
    "trace_sha256",
    "write_trace",
]

FORMATS: dict[str, TraceFormat] = {name: row.load() for name, row in TRACE_FORMATS.items()}
"""All formats by name. Where a line has marks of two, the first here is taken."""

_BUILTIN = "builtin:"
_SUFFIX = ".jsonl.gz"
_TURNS = 1000
"""Lines that are looked at for a turn without a time, which makes a trace one of turns."""
_STORES_MARK = "stores_only"
"""Field of every line of a trace of stored blocks."""


def resolve_trace(source: str | Path) -> Path:
    """The file behind a path or ``builtin:NAME``, or a folder of conversations; ``TraceError``."""
    folder, path = shipped("configs") / "traces", Path(source)
    names = sorted(
        f"{_BUILTIN}{file.name.removesuffix(_SUFFIX)}" for file in folder.glob(f"*{_SUFFIX}")
    )
    if isinstance(source, str) and source.startswith(_BUILTIN):
        if source not in names:
            raise TraceError(f"{source} is not shipped; there is: {', '.join(names)}.")
        return folder / f"{source.removeprefix(_BUILTIN)}{_SUFFIX}"
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}).") from None
    if is_folder and not conversation_files(path):
        raise TraceError(
            f"{path} is a folder without conversations (*.json, *.json.gz): name one trace file."
        )
    if is_folder or is_file:
        return path
    if path.exists():
        raise TraceError(
            f"{path}: it is a pipe or a device, and a trace is read more than once: write it to a "
            "file."
        )
    raise TraceError(f"{path}: there is no such trace file; shipped: {', '.join(names)}.")


def trace_sha256(path: Path) -> str:
    """Digest of a file's bytes; a folder's is of its conversations' digests and their names."""
    if path.is_dir():
        files = conversation_files(path)
        named = (b"%s  %s\n" % (trace_sha256(f).encode(), os.fsencode(f.name)) for f in files)
        return hashlib.sha256(b"".join(named)).hexdigest()
    with open_trace(path) as lines:
        lines.peek()  # what has no line is refused before all of it is read
    try:
        return hash_file(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}).") from None


def read_trace(
    source: str | Path, trace_format: str = "auto", options: ReadOptions = DEFAULTS
) -> Iterator[Request]:
    """The requests of a trace file, folder or ``builtin:NAME``, one at a time.

    They come in file order, or in order of arrival where the format is merged or sorted. Raises
    ``ConfigError`` for an unknown format and ``TraceError``: immediately if there is no such file,
    for a defective line when it is reached.
    """
    return (request for _, request in read_placed_trace(source, trace_format, options))


def read_placed_trace(
    source: str | Path, trace_format: str = "auto", options: ReadOptions = DEFAULTS
) -> Iterator[tuple[str, Request]]:
    """The requests with their places, ``file:line``; raises as ``read_trace`` does."""
    if trace_format not in ("auto", *FORMATS):
        raise ConfigError(f"{trace_format!r} is not a trace format: take auto, {listed(FORMATS)}.")
    path = resolve_trace(source)
    if not path.is_dir():
        return _read_lines(path, trace_format, options)
    if trace_format not in ("auto", "weka"):
        raise TraceError(f"{path} is a folder: a {trace_format} trace is one file.")
    return read_weka_folder(path, options)


def _read_lines(
    path: Path, trace_format: str, options: ReadOptions
) -> Iterator[tuple[str, Request]]:
    name = detect_format(path) if trace_format == "auto" else trace_format
    before_s = -inf
    with open_trace(path, options.watch) as lines:
        try:
            if not lines.peek():
                raise Defect("the file is empty")
            if _is_marked(lines.peek()) and not options.stores:
                raise TraceError(
                    f"{path}: this trace says what a server stored, not what was asked of it: "
                    "prompts that were cached as a whole are missing, so it has no hit rate. "
                    "Record requests, too: dsv4kv record --proxy or --requests."
                )
            for request in FORMATS[name].read(lines, options):
                place, at_s = f"{path}:{lines.number}", request.arrival_s
                if at_s < before_s and not options.any_order:
                    raise TraceError(
                        f"{place}: the request arrives at {at_s:,.3f} s, the one before it at "
                        f"{before_s:,.3f} s: the clock runs backwards. Sort the trace: dsv4kv "
                        "trace convert SOURCE OUT --sort."
                    )
                before_s = at_s
                yield place, request
            if before_s == -inf:
                raise Defect("the trace has no requests")
        except Defect as defect:
            raise Defect(f"{defect}. A {name} trace is {FORMATS[name].shape}") from None


def load_paths(
    source: str | Path, trace_format: str = "auto", options: ReadOptions = DEFAULTS
) -> PathTable:
    """Read a trace for analysis and make sure that it can be one; raises ``TraceError``."""
    table = collect_paths(read_trace(source, trace_format, options))
    check_histories(table, lambda request: place_of(request, source, trace_format, options))
    return table


def place_of(request: int, source: str | Path, trace_format: str, options: ReadOptions) -> str:
    """File and line of a request: reads the trace again up to it, places are not kept for all."""
    placed = read_placed_trace(source, trace_format, options)
    return next(islice(placed, request, None))[0]


def is_stores_only(path: Path) -> bool:
    """Whether a trace lists what a server stored, not what was requested: it has no hit rate.

    A prompt that is cached as a whole leaves nothing in a server's events.
    """
    if not path.is_file():
        return False
    with open_trace(path) as lines:
        return _is_marked(lines.peek())


def _is_marked(line: str) -> bool:
    return f'"{_STORES_MARK}"' in line and parse_object(line).get(_STORES_MARK) is True


def write_trace(
    requests: Iterable[Request], path: Path, trace_format: str = "dsv4kv", *, stores: bool = False
) -> int:
    """Write the requests, compressed if ``path`` ends in ``.gz``; return how many there were.

    ``stores``: mark them as what a server stored. The file appears under its name when it is
    complete, so a trace may be written over the file it is read from. Raises ``TraceError``.
    """
    write_lines = choose(TRACE_LINES, trace_format, "a format that traces are written in").load()
    if path.is_dir():
        raise TraceError(f"{path} is a folder: name the file to write.")
    count = 0
    try:
        with ExitStack() as opened:
            file: BinaryIO = opened.enter_context(replacing(path, follow=True))
            if path.suffix == ".gz":
                # no time and no name in the header: equal traces are equal files
                packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0)
                file = cast(BinaryIO, opened.enter_context(packed))
            for line in write_lines(requests):
                marked = f'{line.rstrip()[:-1]},"{_STORES_MARK}":true}}\n' if stores else line
                file.write(marked.encode())
                count += 1
            if not count:
                raise TraceError(f"{path}: not written, there are no requests.")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror or error}).") from None
    return count


def detect_format(path: Path) -> str:
    """The format that a file's first line shows; a folder is ``weka``. Raises ``TraceError``."""
    if path.is_dir():
        return "weka"
    with open_trace(path) as lines:
        line = lines.peek()
        if not line:
            raise Defect("the file is empty")
        is_json = line.lstrip().startswith(("{", "["))
        records = json_records(lines) if is_json else iter(())
        # an empty array has no requests of any format
        names: Collection[str] = next(records, INPUT_NAMES) if is_json else parse_row(line)
        for name, trace_format in FORMATS.items():
            if trace_format.marks.intersection(names):
                turns = name == "mooncake" and "session_id" in names
                later = islice(records, _TURNS) if turns else ()
                return "mooncake-delta" if any("timestamp" not in each for each in later) else name
        raise Defect(
            f"the first line is of no known format, which are {listed(FORMATS)}: of other fields "
            "dsv4kv trace convert --format timed --fields T,IN,OUT makes one, of text dsv4kv "
            "trace tokenize"
        )
