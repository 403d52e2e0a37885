"""Writes a trace as lines of a format: whole or not at all, the same bytes every time."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

from dsv4kv.errors import TraceError
from dsv4kv.files import replacing
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.delta import format_mooncake_delta
from dsv4kv.workload.traces.mooncake import format_mooncake
from dsv4kv.workload.traces.native import format_native
from dsv4kv.workload.traces.timed import format_timed

LINES: dict[str, Callable[[Iterable[Request]], Iterator[str]]] = {
    "dsv4kv": format_native,
    "mooncake": format_mooncake,
    "mooncake-delta": format_mooncake_delta,
    "timed": format_timed,
}
"""Formats of lines, one for every request."""


def write_trace(requests: Iterable[Request], path: Path, trace_format: str = "dsv4kv") -> int:
    """Write the requests, compressed if ``path`` ends in ``.gz``; return how many there were.

    The file appears under its name when it is complete, so a trace may be written over the
    file it is read from.

    Raises:
        TraceError: The file cannot be written, there are no requests, or the format (one of
            ``LINES``) cannot tell one.
    """
    count = 0
    with writing(path) as file:
        for line in LINES[trace_format](requests):
            file.write(line.encode())
            count += 1
        if not count:
            raise TraceError(f"{path}: not written, there are no requests.")
    return count


@contextmanager
def writing(path: Path) -> Iterator[BufferedWriter | gzip.GzipFile]:
    """Open a file that appears when the block succeeds, compressed where its name says so.

    Raises:
        TraceError: It cannot be written.
    """
    if path.is_dir():
        raise TraceError(f"{path} is a folder: name the file to write.")
    try:
        with replacing(path) as raw, _compressing(raw, path) as file:
            yield file
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror or error}).") from None


@contextmanager
def _compressing(file: BufferedWriter, path: Path) -> Iterator[BufferedWriter | gzip.GzipFile]:
    """Compress what is written where the name asks for it."""
    if path.suffix != ".gz":
        yield file
        return
    # no time and no name in the header: equal traces are equal files
    with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
        yield compressed
