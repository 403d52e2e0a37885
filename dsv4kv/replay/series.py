"""What was held at moments of a replay: as many moments as are wanted, spread over all of it."""

from dataclasses import dataclass

from dsv4kv.replay.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Moment:
    """The state after a turn.

    Attributes:
        time_s: When.
        own_blocks: Blocks that one request holds for itself.
        shared_blocks: Cached blocks that requests are using.
        cached_blocks: Cached blocks that nobody is using.
        checkpoints: Checkpoints kept.
        running: Requests that hold a slot and run.
        paused: Requests that hold a slot and do not.
        waiting: Requests without a slot.
    """

    time_s: float
    own_blocks: int
    shared_blocks: int
    cached_blocks: int
    checkpoints: int
    running: int
    paused: int
    waiting: int


class Series:
    """Keeps moments at least ``_gap_s`` apart; the gap doubles when there are too many."""

    def __init__(self, points: int) -> None:
        """``points`` is the most that are kept."""
        self.moments: list[Moment] = []
        self._points = points
        self._gap_s = 0.0

    def add(self, scheduler: Scheduler) -> None:
        """Look at the scheduler, unless it was looked at just before."""
        now_s = scheduler.clock.now_s
        if self.moments and now_s < self.moments[-1].time_s + self._gap_s:
            return
        ledger = scheduler.ledger
        self.moments.append(
            Moment(
                now_s,
                ledger.private,
                ledger.shared,
                ledger.cached,
                len(scheduler.prompts.checkpoints),
                len(scheduler.decoders) + len(scheduler.prefilling),
                len(scheduler.paused),
                len(scheduler.waiting),
            )
        )
        if len(self.moments) > self._points:
            self.moments = self.moments[::2]
            span_s = self.moments[-1].time_s - self.moments[0].time_s
            self._gap_s = max(2 * self._gap_s, span_s / self._points)
