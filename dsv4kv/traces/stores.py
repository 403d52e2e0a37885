"""Traces of what a server stored, where nobody saw what was asked of it.

A prompt that is cached as a whole leaves nothing in a server's events. So such a trace has no hit
rate: its lines are marked, and who wants one is refused.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from dsv4kv.errors import TraceError
from dsv4kv.traces.files import open_trace
from dsv4kv.traces.parquet import is_parquet
from dsv4kv.traces.records import parse_object

_MARK = "stores_only"


def marked(lines: Iterable[str]) -> Iterator[str]:
    """The same objects, marked."""
    return (f'{line.rstrip()[:-1]},"{_MARK}":true}}\n' for line in lines)


def is_marked(line: str) -> bool:
    """Whether a trace with this first line is of stores alone."""
    return f'"{_MARK}"' in line and parse_object(line).get(_MARK) is True


def is_stores_only(path: Path) -> bool:
    """Whether a trace is of stores alone.

    Raises:
        TraceError: It cannot be read.
    """
    if not path.is_file() or is_parquet(path):
        return False
    with open_trace(path) as lines:
        return is_marked(lines.peek())


def refuse_stores(place: object) -> TraceError:
    """The sentence about a trace that has no hit rate."""
    return TraceError(
        f"{place}: this trace says what a server stored, not what was asked of it: prompts that "
        "were cached as a whole are missing, so it has no hit rate. Record requests, too: "
        "dsv4kv record --proxy or --requests."
    )
