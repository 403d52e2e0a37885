"""Times work that a device replays."""

from collections.abc import Callable
from time import perf_counter_ns

from dsv4kv.measure import protocol
from dsv4kv.measure.device_clock import Event
from dsv4kv.measure.protocol import Clock, Rules, Throttled, Timing

MOST_ROUNDS = 512  # capturing and instantiating more takes longer than it gains

# About 2 ms at 2 GHz: longer than the host takes to launch any graph here. From then on every
# replay outlasts the launch of the next one.
_HEAD_START_CYCLES = 4_000_000


class ReplayTimer:
    """Times replays on one device, which is warmed up whenever it was idle.

    Every replay has its own pair of events and the host waits once a batch. Behind a sleep of the
    device it is ahead all the time, so launching is no part of a sample.
    """

    def __init__(
        self,
        make_event: Callable[[], Event],
        sleep: Callable[[int], None] | None = None,
        rules: Rules | None = None,
        clock_ns: Clock = perf_counter_ns,
        throttled: Throttled | None = None,
    ) -> None:
        """Time with events that ``make_event`` makes.

        Args:
            make_event: Makes a moment on the device's clock.
            sleep: Lets the device wait for so many cycles; None where it cannot.
            rules: When to begin and to end.
            clock_ns: The host's clock.
            throttled: Tells of that clock's moments; None where nobody knows.
        """
        self._make_event = make_event
        self._sleep = sleep
        self.rules = rules or protocol.RULES
        self._clock_ns = clock_ns
        self._throttled = throttled
        self._worked_ns: int | None = None

    def rounds_for(self, replay: Callable[[], None]) -> int:
        """How often work must be captured in one graph for a replay to last long enough."""
        return protocol.rounds_for(lambda n: self._take(replay, n), self.rules, MOST_ROUNDS)

    def time(self, replay: Callable[[], None], calls: int, most_ns: int | None = None) -> Timing:
        """Time one of the ``calls`` equal calls that a replay makes, in at most ``most_ns``."""
        worked_ns = self._worked_ns
        rules = self.rules if most_ns is None else self.rules.within(most_ns)
        was_idle = worked_ns is None or self._clock_ns() - worked_ns > rules.idle_ns
        timing = protocol.measure(
            lambda n: self._take(replay, n),
            calls,
            rules,
            was_idle=was_idle,
            clock_ns=self._clock_ns,
            throttled=self._throttled,
        )
        self._worked_ns = self._clock_ns()
        return timing

    def _take(self, replay: Callable[[], None], count: int) -> list[int]:
        pairs = [(self._make_event(), self._make_event()) for _ in range(count)]
        if self._sleep is not None:
            self._sleep(_HEAD_START_CYCLES)
        for start, end in pairs:
            start.record()
            replay()
            end.record()
        pairs[-1][1].synchronize()
        return [round(start.elapsed_time(end) * 1e6) for start, end in pairs]
