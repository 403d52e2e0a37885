"""Exceptions on every line: the n-th line of the package that is run raises, for every n."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import dsv4kv

PACKAGE = str(Path(dsv4kv.__file__).parent)
Scene = TypeVar("Scene")


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


def at_every_line(
    make: Callable[[], Scene],
    operate: Callable[[Scene], object],
    facts: Callable[[Scene], object],
    error: type[BaseException] = KeyboardInterrupt,
    outcome: Callable[[Scene], object] | None = None,
) -> int:
    """Interrupt an operation on every line it runs, and then do it again.

    After the interruption ``facts`` are what they were before. In the end they are what they are
    without one, or ``outcome`` is, where what comes out may depend on what was used. Returns on
    how many lines.
    """
    outcome = outcome or facts
    scene = make()
    before = facts(scene)
    operate(scene)
    after = outcome(scene)
    for at in count():
        scene = make()
        try:
            with interrupted(at, error) as where:
                operate(scene)
        except error:
            assert facts(scene) == before, f"{where[0]} has left something"
            operate(scene)
        assert outcome(scene) == after, f"after {where} it is not as it is without"
        if not where:
            return at
    raise AssertionError
