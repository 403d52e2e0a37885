"""Rows of the table of ``bench systems``: what was counted, and how long single calls take."""

import gc
from collections.abc import Callable
from time import perf_counter_ns

from dsv4kv.bench.systems.workload import Row, Unit
from dsv4kv.config.systems import CallsSection
from dsv4kv.measure.statistics import Estimate, summarize

Call = Callable[[], object]
_FEWEST = 6  # samples: fewer have no interval


class Rows(list[Row]):
    """Rows of one system."""

    def __init__(self, rules: CallsSection) -> None:
        super().__init__()
        self._rules = rules

    def counted(self, quantity: str, unit: Unit, value: float) -> None:
        """Add what was counted."""
        self.append(Row(quantity, unit, Estimate(float(value), 0.0)))

    def timed(self, quantity: str, call: Call, before: Call = lambda: None) -> None:
        """Add the median of a call; ``before`` is done before each, and not timed."""
        end_ns = perf_counter_ns() + int(self._rules.seconds * 1e9)
        samples = list[int]()
        gc.disable()
        try:
            for number in range(self._rules.rounds + 1):
                if number > _FEWEST and perf_counter_ns() > end_ns:
                    break
                before()
                start_ns = perf_counter_ns()
                call()
                samples.append(perf_counter_ns() - start_ns)
        finally:
            gc.enable()
        self.append(Row(quantity, "ns", summarize(samples[1:]).estimate))  # the first warms up
