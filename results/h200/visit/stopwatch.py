"""Times work and answers with medians."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dsv4kv.bench.device import CallTimer
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.runs.statistics import summarize
from visit.desk import Desk
from visit.place import Place
from visit.workloads import Work

_MOST_NS = 3_000_000_000  # of each work: a visit has many


@dataclass(frozen=True)
class Measured:
    """Samples of a call, and what a call does."""

    samples_ns: list[int]
    entries: int
    bytes: int

    @property
    def median_ns(self) -> float:
        """Of one call; NaN where the GPU was throttled all the time."""
        return summarize(self.samples_ns).median if self.samples_ns else math.nan

    @property
    def tbps(self) -> float:
        """Useful bytes in TB/s."""
        return self.bytes / self.median_ns / 1e3


class Stopwatch:
    """Times on one device, and answers a desk's questions."""

    def __init__(self, desk: Desk, place: Place) -> None:
        self._desk, self.timer = desk, CallTimer(place.device)

    def time(self, work: Work, name: str) -> Measured:
        """Time calls, each on bytes of its own."""
        calls = [partial(_run, [prepare(launch) for launch in call]) for call in work.calls]
        timing = self.timer.measure(calls, name, most_ns=_MOST_NS)
        return Measured(timing.samples_ns, work.entries, work.bytes)

    def answer(self, name: str, found: Measured, figure: Callable[[float], float]) -> None:
        """Answer with the median; ``figure`` makes the question's unit of nanoseconds."""
        if not found.samples_ns:
            self._desk.answer(name, None, why="the GPU was throttled all the time")
            return
        summary = summarize(found.samples_ns)
        ends = summary.ci_low, summary.ci_high
        interval = sorted(figure(end) for end in ends if end is not None)
        self._desk.answer(
            name,
            figure(summary.median),
            interval or None,
            samples=summary.n,
            bytes=found.bytes,
            entries=found.entries,
        )


def _run(launches: Sequence[Callable[[], None]]) -> None:
    for launch in launches:
        launch()
