"""When a measurement begins and when it ends: warm up until flat, sample until known.

The same for GPUs and CPUs: what differs is how units of work are timed, which is handed in.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from dsv4kv.runs.statistics import summarize

Take = Callable[[int], list[int]]
"""Runs a number of equal units of work and gives the nanoseconds of each."""

Clock = Callable[[], int]

Throttled = Callable[[int, int], bool]
"""Whether the device was slowed by force between two moments of the clock."""


@dataclass(frozen=True)
class Rules:
    """How long to warm up and to sample; times in nanoseconds, tolerances as fractions."""

    unit_ns: int = 1_000_000
    """A unit of work lasts at least this: shorter ones are repeated, so that events (0.5 µs apart
    at best) and launches hardly count."""
    warmup_ns: int = 3_000_000_000
    """Least time to warm up a device that was idle: clocks and voltage settle."""
    window_ns: int = 1_000_000_000
    """The last two windows of this length must agree before sampling begins."""
    rewarm_window_ns: int = 100_000_000  # the same, for a device that has worked until just now
    idle_ns: int = 1_000_000_000  # a device without work for longer is warmed up as an idle one
    flat: float = 0.005  # how far the medians of two windows may differ
    most_warmup_ns: int = 10_000_000_000  # sampling begins after so long in any case
    batch_ns: int = 100_000_000  # work handed over at once, before anybody looks at the samples
    fewest_samples: int = 30  # needed at least
    least_ns: int = 500_000_000  # sampled time needed at least: device counters see no less
    half_width: float = 0.005
    """Wanted half-width of the median's interval, as a fraction of the median."""
    most_ns: int = 10_000_000_000  # sampling ends after so long, known or not

    @property
    def least_total_ns(self) -> int:
        """What measuring takes at least on a device that has worked until just now."""
        return 2 * self.rewarm_window_ns + self.least_ns

    def within(self, total_ns: int) -> "Rules":
        """The same, ending after ``total_ns`` in any case; warming up takes its share of that."""
        warmup_ns = total_ns * 2 * self.rewarm_window_ns // max(1, self.least_total_ns)
        return replace(
            self,
            warmup_ns=min(self.warmup_ns, warmup_ns),
            most_warmup_ns=min(self.most_warmup_ns, warmup_ns),
            most_ns=min(self.most_ns, total_ns - warmup_ns),
        )


RULES = Rules()

_MOST_AT_ONCE = 256  # a device's queue takes about a thousand launches


@dataclass(frozen=True)
class Timing:
    """Samples, and how they came about."""

    samples_ns: list[int]
    """Nanoseconds of one call, one element per unit of work; none where all were throttled."""
    started_ns: int  # when sampling began, of ``perf_counter_ns``
    ended_ns: int  # when it ended
    converged: bool  # whether the median is as well known as the rules want it
    throttled: int = 0  # samples left out, as the device was throttled during them


def measure(
    take: Take,
    calls: int,
    rules: Rules,
    *,
    was_idle: bool = True,
    clock_ns: Clock | None = None,
    throttled: Throttled | None = None,
) -> Timing:
    """Warm up and sample units of ``calls`` calls each; throttled ones are dropped."""
    clock_ns = clock_ns or perf_counter_ns
    unit_ns = _warm_up(take, rules, was_idle, clock_ns)
    started_ns = clock_ns()
    batches, converged = _sample(take, unit_ns, rules, clock_ns)
    ended_ns = clock_ns()
    whole = [unit for *_, units in batches for unit in units]
    units_ns = whole
    # asking is costly: once where the device was never throttled
    if throttled is not None and throttled(batches[0][0], batches[-1][1]):
        units_ns = [unit for *span, units in batches if not throttled(*span) for unit in units]
    left_out = len(whole) - len(units_ns)
    return Timing(
        samples_ns=[round(unit / calls) for unit in units_ns],
        started_ns=started_ns,
        ended_ns=ended_ns,
        converged=converged if not left_out else bool(units_ns) and is_known(units_ns, rules),
        throttled=left_out,
    )


def rounds_for(take: Take, rules: Rules, most: int) -> int:
    """How often work must be repeated to last ``rules.unit_ns``; at most ``most`` times."""
    if not rules.unit_ns:
        return 1
    take(1)  # the first brings code and pages
    shortest_ns = max(1, min(take(3)))
    return max(1, min(most, -(-rules.unit_ns // shortest_ns)))


def is_known(samples_ns: Sequence[int], rules: Rules) -> bool:
    """Whether the median is known to ``rules.half_width``, and the halves agree: no drift."""
    estimate, middle = summarize(samples_ns).estimate, len(samples_ns) // 2
    spread = math.inf if estimate.half_width is None else estimate.half_width
    drift = abs(float(np.median(samples_ns[:middle]) - np.median(samples_ns[middle:])))
    return max(spread, drift / 2) <= rules.half_width * estimate.value


def _warm_up(take: Take, rules: Rules, was_idle: bool, clock_ns: Clock) -> float:
    """Work until two windows agree; returns the nanoseconds of a unit in the last one."""
    least_ns = rules.warmup_ns if was_idle else 0
    window_ns = rules.window_ns if was_idle else rules.rewarm_window_ns
    started_ns, before = clock_ns(), math.inf
    while True:
        unit_ns = _window_median(take, window_ns, rules, clock_ns)
        elapsed_ns = clock_ns() - started_ns
        is_flat = abs(unit_ns - before) <= rules.flat * unit_ns
        if (is_flat and elapsed_ns >= least_ns) or elapsed_ns >= rules.most_warmup_ns:
            return unit_ns
        before = unit_ns


def _window_median(take: Take, window_ns: int, rules: Rules, clock_ns: Clock) -> float:
    started_ns = clock_ns()
    found = take(1)
    while clock_ns() - started_ns < window_ns:
        found += take(_batch(found[-1], rules))
    return float(np.median(found))


_Batch = tuple[int, int, list[int]]
"""Begin, end and samples of units that were handed over together."""


def _sample(
    take: Take, unit_ns: float, rules: Rules, clock_ns: Clock
) -> tuple[list[_Batch], bool]:
    started_ns, count = clock_ns(), _batch(unit_ns, rules)
    batches: list[_Batch] = []
    found: list[int] = []
    while True:
        began_ns, units_ns = clock_ns(), take(count)
        batches.append((began_ns, clock_ns(), units_ns))
        found += units_ns
        elapsed_ns = clock_ns() - started_ns
        enough = len(found) >= rules.fewest_samples and elapsed_ns >= rules.least_ns
        if enough and is_known(found, rules):
            return batches, True
        if elapsed_ns >= rules.most_ns:
            return batches, False


def _batch(unit_ns: float, rules: Rules) -> int:
    return max(1, min(_MOST_AT_ONCE, math.ceil(rules.batch_ns / max(1.0, unit_ns))))


def timed_ns(call: Callable[[], object]) -> int:
    """Nanoseconds of one call."""
    started_ns = perf_counter_ns()
    call()
    return perf_counter_ns() - started_ns


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


_FOREVER_NS = 1 << 62


class Budget:
    """A number of seconds from now on, for several measurements.

    A measurement that needs less than its share leaves the rest to those that follow; where not
    all can have the least they need, the first have it.
    """

    def __init__(self, seconds: float | None, clock_ns: Clock = perf_counter_ns) -> None:
        """``seconds``: None sets no limit."""
        self._clock_ns = clock_ns
        self._end_ns = clock_ns() + (_FOREVER_NS if seconds is None else round(seconds * 1e9))

    def share_ns(self, measurements: int, least_ns: int) -> int | None:
        """Time for the first of the measurements; None where not even ``least_ns`` is left."""
        left_ns = self._end_ns - self._clock_ns()
        return None if left_ns < least_ns else max(least_ns, left_ns // measurements)


_FILL = 0x5A  # not zero: untouched zero pages share one physical page and copy too fast


def measure_memcpy(size_bytes: int, repeats: int = 10) -> list[int]:
    """Durations in ns of copies, each moving twice its size, after one untimed copy."""
    import torch

    source = torch.full((size_bytes,), _FILL, dtype=torch.uint8)
    copy = partial(torch.ones_like(source).copy_, source)
    copy()
    return [timed_ns(copy) for _ in range(repeats)]
