"""Writes a trace as lines of a format: whole or not at all, the same bytes every time."""

from collections.abc import Iterable
from pathlib import Path

from dsv4kv.choices import TRACE_LINES, choose
from dsv4kv.errors import TraceError
from dsv4kv.traces.files import writing
from dsv4kv.traces.request import Request

STORES_MARK = "stores_only"
"""Field of every line of a trace of what a server stored."""


def write_trace(
    requests: Iterable[Request], path: Path, trace_format: str = "dsv4kv", *, stores: bool = False
) -> int:
    """Write the requests, compressed if ``path`` ends in ``.gz``; return how many there were.

    ``stores``: mark them as what a server stored. The file appears under its name when it is
    complete, so a trace may be written over the file it is read from. Raises ``TraceError``.
    """
    write_lines = choose(TRACE_LINES, trace_format, "a format that traces are written in").load()
    count = 0
    with writing(path) as file:
        for line in write_lines(requests):
            marked = f'{line.rstrip()[:-1]},"{STORES_MARK}":true}}\n' if stores else line
            file.write(marked.encode())
            count += 1
        if not count:
            raise TraceError(f"{path}: not written, there are no requests.")
    return count
