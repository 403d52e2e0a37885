"""Interleave steps with another process: both see the same noise. A byte goes around two pipes."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

VARIABLE = "DSV4KV_TURNS"  # the ends to read from and to write to


class Turns:
    """One process's place in the ring."""

    def __init__(self, read_end: int, write_end: int) -> None:
        """Take over both file descriptors."""
        self._ends = (read_end, write_end)
        self._alone = False

    @classmethod
    def join(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The place that the parent process has named in ``VARIABLE``; None without one."""
        ends = environment.get(VARIABLE, "").split(",")
        return cls(int(ends[0]), int(ends[1])) if len(ends) == 2 else None

    def meet(self) -> None:
        """Wait until the other is as far: what comes next begins with both ready."""
        self.wait()
        self.hand_on()

    def wait(self) -> bool:
        """Sleep until it is this process's turn: True, or the other has gone: False."""
        # nothing comes from an end without a writer: the other has ended, or died
        self._alone = self._alone or not os.read(self._ends[0], 1)
        return not self._alone

    def hand_on(self) -> None:
        """Let the other work."""
        if not self._alone:
            try:
                os.write(self._ends[1], b"!")
            except BrokenPipeError:
                self._alone = True


@contextmanager
def ring() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Open two pipes between two processes, as long as these are being started.

    Yields the descriptors of each, to be inherited and named in ``VARIABLE``; the first works
    first. This process's copies are closed, or an end without a writer would never show.
    """
    to_second, to_first = os.pipe(), os.pipe()
    os.write(to_first[1], b"!")
    try:
        yield (to_first[0], to_second[1]), (to_second[0], to_first[1])
    finally:
        for end in (*to_second, *to_first):
            os.close(end)


@contextmanager
def one_cpu() -> Iterator[None]:
    """Keep this thread on the last CPU that it may use, which is the other process's as well."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
