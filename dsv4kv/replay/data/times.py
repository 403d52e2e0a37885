"""How long the cache's part of every step took, and what the model says of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from dsv4kv.replay.clock import Work

StepKind = Literal["decode", "mixed"]
_NS = 1e9


@dataclass
class KindTimes:
    """All steps of one kind, measured and modelled."""

    measured_ns: list[int] = field(default_factory=list)
    modelled_ns: list[int] = field(default_factory=list)


class StepClock:
    """Adds up what is timed until the scheduler counts the step it belonged to.

    Attributes:
        by_kind: Times of all steps so far.
        steps: Their number.
        kind: Of the step that is under way.
        total_ns: Everything timed so far.
    """

    def __init__(self, now_ns: Callable[[], int], bytes_per_s: float) -> None:
        """``bytes_per_s`` is the bandwidth that the model gives the cache."""
        self.by_kind: dict[StepKind, KindTimes] = {"decode": KindTimes(), "mixed": KindTimes()}
        self.kind: StepKind = "decode"
        self.steps = self.total_ns = 0
        self._now_ns, self._bytes_per_s = now_ns, bytes_per_s
        self._charged_ns = self._step_start_ns = self._step_bytes = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what is inside as work of the cache."""
        start_ns = self._now_ns()
        try:
            yield
        finally:
            self.total_ns += self._now_ns() - start_ns

    def charge(self, work: Work) -> float:
        """Seconds that some work took, which is done: all since the last question."""
        seconds = (self.total_ns - self._charged_ns) / _NS
        self._charged_ns = self.total_ns
        self._step_bytes += work.cache_bytes
        if work.steps:
            times = self.by_kind[self.kind]
            times.measured_ns.append(self.total_ns - self._step_start_ns)
            times.modelled_ns.append(round(self._step_bytes / self._bytes_per_s * _NS))
            self.steps += 1
            self.kind, self._step_start_ns, self._step_bytes = "decode", self.total_ns, 0
        return seconds
