"""Times a call and its plain re-statement interleaved, so that both see the same machine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns

from dsv4kv.config.systems import CallsSection
from dsv4kv.measure.statistics import summarize
from dsv4kv.processes import without_collector
from dsv4kv.systems.outcome import Row

Call = Callable[[], object]
_FEWEST = 6  # samples: fewer have no interval


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Timed:
    """A call, and what has to be done before each, which is not timed."""

    call: Call
    before: Call = _nothing


@dataclass
class CallTimer:
    """Times calls of one system into rows.

    Attributes:
        system: Its name.
        rules: How long.
        rows: What was timed.
    """

    system: str
    rules: CallsSection
    rows: list[Row] = field(default_factory=list)

    def time(self, quantity: str, ours: Timed, plain: Timed | None = None) -> None:
        """Add a row: medians of both, interleaved, each first in every other round."""
        both = [ours] if plain is None else [ours, plain]
        samples: list[list[int]] = [[] for _ in both]
        with without_collector():
            for round_number in _rounds(self.rules):
                order = list(zip(both, samples, strict=True))
                for timed, found in order if round_number % 2 else reversed(order):
                    found.append(_sample(timed))
        estimates = [summarize(found[1:]).estimate for found in samples]  # the first warms up
        self.rows.append(Row(self.system, quantity, "ns", *estimates))

    def count(self, row: Row) -> None:
        """Add a row that was counted."""
        self.rows.append(row)


def _rounds(rules: CallsSection) -> Iterator[int]:
    end_ns = perf_counter_ns() + int(rules.seconds * 1e9)
    for number in range(rules.rounds + 1):
        if number > _FEWEST and perf_counter_ns() > end_ns:
            return
        yield number


def _sample(timed: Timed) -> int:
    timed.before()
    start_ns = perf_counter_ns()
    timed.call()
    return perf_counter_ns() - start_ns
