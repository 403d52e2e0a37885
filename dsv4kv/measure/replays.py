"""Times work that a device replays."""

from collections.abc import Callable

from dsv4kv.measure.device_clock import Event

WARMUP_REPLAYS = 10
SAMPLES = 50


def time_replays(
    replay: Callable[[], None], calls: int, make_event: Callable[[], Event]
) -> list[int]:
    """Nanoseconds of one of the ``calls`` equal calls that a replay makes, ``SAMPLES`` times.

    Every replay has its own pair of events and the host waits once, at the end: it is ahead of
    the device all the time, so launching is no part of a sample.
    """
    for _ in range(WARMUP_REPLAYS):
        replay()
    pairs = [(make_event(), make_event()) for _ in range(SAMPLES)]
    for start, end in pairs:
        start.record()
        replay()
        end.record()
    pairs[-1][1].synchronize()
    return [round(start.elapsed_time(end) * 1e6 / calls) for start, end in pairs]
