"""What makes a format of traces: how it is read, and how it is known."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dsv4kv.traces.batch import LineShape
from dsv4kv.traces.files import ReadOptions, TraceLines
from dsv4kv.traces.request import Request

Reader = Callable[[TraceLines, ReadOptions], Iterator[Request]]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How to read a format, and how to know it.

    Attributes:
        read: Yields the requests of an open trace.
        marks: A first line with any of these fields is of this format; none if it must be named.
        shape: What a line or header looks like, for error messages.
        columns: Reads many lines at once, where they are plain.
    """

    read: Reader
    marks: frozenset[str]
    shape: str
    columns: LineShape | None = None


def plain(read: Callable[[TraceLines], Iterator[Request]]) -> Reader:
    """A reader that needs no options."""
    return lambda lines, _: read(lines)
