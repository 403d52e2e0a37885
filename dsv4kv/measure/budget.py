"""Time for a list of measurements, the most telling first, shared out as they come."""

from time import perf_counter_ns

from dsv4kv.measure.protocol import Clock

_FOREVER_NS = 1 << 62


class Budget:
    """So many seconds from now on.

    Whoever needs less than its share leaves the rest to those that follow; where not all can have
    the least they need, the first have it.
    """

    def __init__(self, seconds: float | None, clock_ns: Clock = perf_counter_ns) -> None:
        """``seconds``: None is as many as it takes."""
        self._clock_ns = clock_ns
        self._end_ns = clock_ns() + (_FOREVER_NS if seconds is None else round(seconds * 1e9))

    def share_ns(self, measurements: int, least_ns: int) -> int | None:
        """Time for the first of so many measurements; None where not even ``least_ns`` is left."""
        left_ns = self._end_ns - self._clock_ns()
        return None if left_ns < least_ns else max(least_ns, left_ns // measurements)
