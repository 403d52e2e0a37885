"""Steps interleaved with another process: both see the same moments of the machine.

A machine that is twice as fast for some seconds as for others makes launches incomparable. Steps
that alternate between two processes share its moods, and on one CPU also those of that CPU. The
two pass a byte around a ring of two pipes; who holds it works, the other sleeps.
"""

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
        """The place that whoever started this process has kept for it; None without one."""
        ends = environment.get(VARIABLE, "").split(",")
        return cls(int(ends[0]), int(ends[1])) if len(ends) == 2 else None

    def meet(self) -> None:
        """Wait until the other is as far: what comes next begins with both ready."""
        self._receive()
        self.hand_on()

    def wait(self) -> bool:
        """Sleep until it is this process's turn: True, or the other has gone: False."""
        self._receive()
        return not self._alone

    def hand_on(self) -> None:
        """Let the other work."""
        if not self._alone:
            try:
                os.write(self._ends[1], b"!")
            except BrokenPipeError:
                self._alone = True

    def _receive(self) -> None:
        """An end without a writer: the other has ended, or died, and will hold nobody up."""
        self._alone = self._alone or not os.read(self._ends[0], 1)


class Ring:
    """Two pipes between two processes, as long as these are being started.

    ``places`` are the descriptors of each: to be inherited, and named in ``VARIABLE``.
    """

    def __init__(self) -> None:
        """Open both; the process of the first place works first."""
        to_second, to_first = os.pipe(), os.pipe()
        os.write(to_first[1], b"!")
        self.places = ((to_first[0], to_second[1]), (to_second[0], to_first[1]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close this process's copies, or nobody would see an end without a writer."""
        for end in (end for place in self.places for end in place):
            os.close(end)


@contextmanager
def one_cpu() -> Iterator[None]:
    """Keep this thread on the last CPU that it may use, which is the other process's as well.

    CPUs differ for as long as somebody else uses what they share. Where threads cannot be bound to
    CPUs, nothing happens.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
