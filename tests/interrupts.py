"""Exceptions on every line: the n-th line of the package that is run raises, for every n."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import dsv4kv

PACKAGE = str(Path(dsv4kv.__file__).parent)


@contextmanager
def interrupted(at: int, error: type[BaseException] = KeyboardInterrupt) -> Iterator[list[str]]:
    """Raise before the ``at``-th line is run, from 0; yields where that was, if it came to it."""
    left, where = at, list[str]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE) or where:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                where.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)
