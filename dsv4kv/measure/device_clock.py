"""Durations on a device's own clock, read once the run is over."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Event(Protocol):
    """A moment on a device; ``torch.cuda.Event`` with timing."""

    def record(self) -> None:
        """The moment is when all work launched so far is done."""

    def synchronize(self) -> None:
        """Wait for the moment."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this moment to another."""


class DeviceClock:
    """Times spans of launched work without waiting for it.

    A span lasts from when the device is done with what came before it: a device that waits for
    the host's launches in between counts that as part of the span.
    """

    def __init__(self, make_event: Callable[[], Event]) -> None:
        """Time with events that ``make_event`` makes."""
        self._make_event = make_event
        self._spans: list[tuple[str, Event, Event]] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what is launched inside; a span that raises is not kept."""
        start, end = self._make_event(), self._make_event()
        start.record()
        yield
        end.record()
        self._spans.append((name, start, end))

    def read_ns(self) -> dict[str, list[int]]:
        """Durations of all spans so far by name, in order; waits for the device."""
        found: dict[str, list[int]] = defaultdict(list)
        if self._spans:
            self._spans[-1][2].synchronize()
        for name, start, end in self._spans:
            found[name].append(round(start.elapsed_time(end) * 1e6))
        return dict(found)
