"""What came of a replay: every request's times, and the most that was ever held."""

from collections import Counter
from typing import TYPE_CHECKING

from dsv4kv.core.served import Served

if TYPE_CHECKING:
    from dsv4kv.core.scheduler import Scheduler


Moment = tuple[float, tuple[int, ...]]
"""The time, and the values of the other columns of ``runs.parts.ReplaySeries``."""


class Series:
    """Keeps moments at least ``_gap_s`` apart; the gap doubles when there are too many."""

    def __init__(self, points: int) -> None:
        self.moments: list[Moment] = []
        self._points = points
        self._gap_s = self._next_s = 0.0

    def add(self, scheduler: "Scheduler", now_s: float) -> None:
        if now_s < self._next_s:
            return
        cache, paused = scheduler.cache, len(scheduler.paused)
        held = cache.private, cache.shared, cache.cached, cache.windows
        runs = scheduler.in_slots - paused, paused, len(scheduler.waiting)
        self.moments.append((now_s, held + runs))
        if len(self.moments) > self._points:
            self.moments = self.moments[::2]
            span_s = self.moments[-1][0] - self.moments[0][0]
            self._gap_s = max(2 * self._gap_s, span_s / self._points)
        self._next_s = self.moments[-1][0] + self._gap_s


_NS = 1e9


class Outcome:
    """Collects what a scheduler reports."""

    def __init__(self, points: int, block_tokens: int, client_s: float = 0.0) -> None:
        """Keep ``points`` moments of the series; ``client_s`` pass outside the server."""
        self.rejected: Counter[str] = Counter()  # requests by why they were never served
        self.finished = self.input_tokens = self.output_tokens = 0
        self.pauses = self.evictions = 0  # how often one was paused, or preempted and recomputed
        # until a slot, until the first token, mean time per output token, until the last token
        self.samples_ns: dict[str, list[int]] = {
            name: [] for name in ("queueing", "ttft", "tpot", "latency")
        }
        self.series = Series(points)
        # ``peak_rounding_tokens`` had the blocks of running requests room for, beyond those they
        # had, when most blocks were in use
        self.peak_blocks = self.peak_rounding_tokens = 0
        self.peak_requests = self.peak_checkpoints = 0
        self._decoded_s = self._busy_s = 0.0
        self._block_tokens, self._client_s = block_tokens, client_s

    @property
    def mean_decoding(self) -> float:
        """Requests that decoded, on average while the server was busy."""
        return self._decoded_s / self._busy_s if self._busy_s else 0.0

    def finish(self, served: Served) -> None:
        self.finished += 1
        self.input_tokens += served.input_tokens
        self.output_tokens += served.output_tokens
        self.pauses += served.pauses
        self.evictions += served.evictions
        for name, span_s in self.times(served).items():
            self.samples_ns[name].append(round(span_s * _NS))

    def times(self, served: Served, asked: Served | None = None) -> dict[str, float]:
        """Waits in s by name; ``asked`` is the request as it came to the server of its prompt."""
        first, client_s = asked or served, self._client_s
        assert first.admitted_s is not None
        assert served.first_token_s is not None
        assert served.finished_s is not None
        spans = {
            "queueing": first.admitted_s - first.arrival_s,
            "ttft": served.first_token_s - first.arrival_s + client_s,
            "latency": served.finished_s - first.arrival_s + client_s,
        }
        if served.output_tokens > 1:
            decoding = served.finished_s - served.first_token_s
            spans["tpot"] = decoding / (served.output_tokens - 1)
        return spans

    def stepped(self, scheduler: "Scheduler") -> None:
        """Look at what is held after a step; requests that have ended are still there."""
        clock, cache = scheduler.clock, scheduler.cache
        now_s = clock.now_s
        self.series.add(scheduler, now_s)
        busy_s = now_s - clock.idle_s
        self._decoded_s += len(scheduler.decoding) * (busy_s - self._busy_s)
        self._busy_s = busy_s
        self.peak_requests = max(self.peak_requests, scheduler.in_slots)
        self.peak_checkpoints = max(self.peak_checkpoints, cache.windows)
        used = cache.private + cache.shared
        if used >= self.peak_blocks:
            self.peak_blocks = used
            # a request may have a few tokens more than its blocks: those of an incomplete entry
            room, size = 0, self._block_tokens
            for each in [*scheduler.decoding, *scheduler.paused]:
                room += max(0, each.blocks * size - each.position)
            for each in [*scheduler.prefilling, *scheduler.loading]:
                room += max(0, each.blocks * size - each.prompt_tokens)
            self.peak_rounding_tokens = room
