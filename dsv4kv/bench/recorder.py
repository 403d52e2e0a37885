"""Collects samples during a run: cheap to call, nothing aggregated."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Protocol

_samples = partial(array, "q")


@dataclass
class OperationSamples:
    """Samples of one operation on one kind of layer, one element per timed call."""

    ns: "array[int]" = field(default_factory=_samples)
    entries: "array[int]" = field(default_factory=_samples)
    bytes: "array[int]" = field(default_factory=_samples)
    flops: "array[int]" = field(default_factory=_samples)


Latency = tuple[str, int]
"""Name and nanoseconds."""

Timed = tuple[str, str, int, int, int, int]
"""Operation, layer type, nanoseconds, entries, useful bytes, floating-point operations."""


class Recorder:
    """Durations by name, and operations by (name, layer type).

    While ``enabled`` is false (warm-up) actions run and nothing is kept. Time spent on inputs and
    checks is added to ``excluded_ns``, and is not part of what surrounds it.
    """

    def __init__(self) -> None:
        self.enabled = True
        self.excluded_ns = 0
        self.latencies: dict[str, array[int]] = defaultdict(_samples)
        self.operations: dict[tuple[str, str], OperationSamples] = defaultdict(OperationSamples)

    def now_ns(self) -> int:
        """A clock that stands still while time is excluded."""
        return perf_counter_ns() - self.excluded_ns

    def keep(self, name: str, start_ns: int) -> None:
        """Keep the time since ``start_ns`` (of ``now_ns``) as a latency."""
        self.keep_all([(name, self.now_ns() - start_ns)], [])

    def keep_all(self, latencies: Iterable[Latency], operations: Iterable[Timed]) -> None:
        """Keep what a step took; an operation without entries is no sample."""
        if not self.enabled:
            return
        for name, ns in latencies:
            self.latencies[name].append(ns)
        for name, layer_type, ns, entries, moved_bytes, flops in operations:
            if entries:
                samples = self.operations[name, layer_type]
                samples.ns.append(ns)
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
            self.excluded_ns += perf_counter_ns() - start_ns


class Event(Protocol):
    """A moment on a device; ``torch.cuda.Event`` with timing."""

    def record(self) -> None:
        """The moment is when all work launched so far is done."""

    def synchronize(self) -> None:
        """Wait for the moment."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this moment to another."""


class DeviceClock:
    """Times spans of launched work, from when the device is done with what came before."""

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
