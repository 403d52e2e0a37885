"""Collects samples while a run goes on: cheap to call, nothing aggregated."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol


def _samples() -> "array[int]":
    return array("q")


@dataclass
class OperationSamples:
    """Samples of one operation on one kind of layer, one element per timed call."""

    ns: "array[int]" = field(default_factory=_samples)
    entries: "array[int]" = field(default_factory=_samples)
    bytes: "array[int]" = field(default_factory=_samples)
    flops: "array[int]" = field(default_factory=_samples)


class Recorder:
    """Durations by name, and operations by (name, layer type).

    While ``enabled`` is false (warm-up) actions run and nothing is kept. Time spent inside
    ``excluded`` (making inputs, checking results) is not part of what surrounds it.
    """

    def __init__(self) -> None:
        self.enabled = True
        self.latencies: dict[str, array[int]] = defaultdict(_samples)
        self.operations: dict[tuple[str, str], OperationSamples] = defaultdict(OperationSamples)
        self._excluded_ns = 0

    def now_ns(self) -> int:
        """A clock that stands still inside ``excluded``."""
        return perf_counter_ns() - self._excluded_ns

    def keep(self, name: str, start_ns: int) -> None:
        """Keep the time since ``start_ns`` (of ``now_ns``) as a latency."""
        if self.enabled:
            self.latencies[name].append(self.now_ns() - start_ns)

    @contextmanager
    def timed(
        self, name: str, layer_type: str, entries: int, moved_bytes: int, flops: int = 0
    ) -> Iterator[None]:
        """Time one operation that works on ``entries`` entries and moves so many useful bytes.

        flops: floating-point operations of its matrix products.
        An operation without work is not a sample.
        """
        start_ns = perf_counter_ns()
        yield
        elapsed_ns = perf_counter_ns() - start_ns
        if self.enabled and entries:
            samples = self.operations[name, layer_type]
            samples.ns.append(elapsed_ns)
            samples.entries.append(entries)
            samples.flops.append(flops)
            samples.bytes.append(moved_bytes)

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Stop the clock of everything that surrounds this."""
        start_ns = perf_counter_ns()
        try:
            yield
        finally:
            self._excluded_ns += perf_counter_ns() - start_ns


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
