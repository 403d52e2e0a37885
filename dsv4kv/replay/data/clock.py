"""Time of a replay that does the work of its cache: measured there, the model's elsewhere."""

from collections.abc import Callable

from dsv4kv.replay.clock import VirtualClock, Work
from dsv4kv.replay.rates import Rates

Charge = Callable[[Work], float]
"""Returns the seconds that the cache's part of some work took, now that it is done."""


class MeasuredClock(VirtualClock):
    """Takes the cache's part of all work as it was measured.

    Overhead, weights and arithmetic stay as the model says: a cache computes no attention.
    """

    def __init__(self, rates: Rates, charge: Charge) -> None:
        super().__init__(rates)
        self._charge = charge
        self._measured_s = 0.0

    def work(self, work: Work) -> None:
        """Count work that has been done."""
        self._measured_s += self._charge(work)
        super().work(work)

    def _duration(self, work: Work) -> float:
        rates = self._rates
        return (
            self._measured_s
            + work.steps * rates.overhead_s
            + work.weight_bytes / rates.bytes_per_s
            + work.operations / rates.operations_per_s
        )
