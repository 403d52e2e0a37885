"""What came of a replay: hits and lost tokens by reason, times, and the most ever held."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsv4kv.core.served import Hit, Served

if TYPE_CHECKING:
    from dsv4kv.core.scheduler import Scheduler

REASONS = (
    "evicted_block",
    "evicted_checkpoint",  # the block was there; a checkpoint of window and state was too, once
    "no_checkpoint",  # the block was there, and no checkpoint that far was ever written
    "draft",  # what a draft's layer needs after them is not what the cache has
    "alignment",  # they are no whole block, page or period of the rule
    "last_token",  # a hit must leave the last token of a prompt to be computed
    "replay",  # computed again to have the window
)
"""Why tokens are lost that an unbounded cache without rules would have hit."""


class SeenIds:
    """Remembers chains of block ids.

    An id stands for its history, so it is always the same one that comes before it: wherever ids
    count up, every chain that has one of them has all before it in that run. A run is known by
    its first id and by how much of it was ever seen. A prompt's last id may be partial, and may
    keep its number while its block fills up.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._missing: dict[int, int] = {}  # by a last id: its tokens that no prompt had

    def add(self, starts: list[int], counts: list[int], id_tokens: int, tokens: int) -> int:
        """Remember a prompt's runs of ids; returns its leading tokens that an earlier one had."""
        seen, missing, known, place, last = self._seen, self._missing, 0, 0, -1
        while place < len(starts) and seen.get(starts[place], 0) >= counts[place]:
            known += counts[place]
            last = starts[place] + counts[place] - 1
            place += 1
        if place < len(starts):
            more = seen.get(starts[place], 0)
            known += more
            if more:
                last = starts[place] + more - 1
        seen_tokens = min(known * id_tokens - missing.get(last, 0), tokens) if known else 0
        if place < len(starts):
            missing.pop(last, 0)  # another id follows it
            known += sum(counts[place:]) - more
            last = starts[-1] + counts[-1] - 1
            missing[last] = known * id_tokens - tokens
            for start, count in zip(starts[place:], counts[place:], strict=True):
                seen[start] = count
        elif last in missing:
            missing[last] = min(missing[last], known * id_tokens - tokens)
        if missing.get(last, 1) <= 0:
            del missing[last]
        return seen_tokens


class ReuseTally:
    """Counts over first admissions, as ``runs.parts.Reuse`` explains them."""

    def __init__(
        self,
        runs_of: Callable[[Sequence[int]], tuple[list[int], list[int]]],
        shared_tokens: int,
        draft_needs: tuple[int, int] = (0, 0),
        uncovered_tokens: int = 1,
    ) -> None:
        """``runs_of``: first id and length of every run of ids that are no plain list."""
        self.shared_tokens = shared_tokens  # tokens of a shared block
        self.uncovered_tokens = uncovered_tokens  # tokens at a prompt's end that no hit covers
        # tokens after a hit that must be known for drafts, and tokens it drops
        self.draft_needs = draft_needs
        self.requests = self.prompt_tokens = self.prompt_blocks = 0
        self.found_blocks = 0
        self.in_flight_tokens = 0  # lost because another request was just computing them
        self.seen_tokens = self.saved_tokens = 0
        self.lost = dict.fromkeys(REASONS, 0)
        self._runs_of, self._seen = runs_of, SeenIds()
        self._pending: set[int] = set()  # seen, and not stored yet

    def store(self, served: Served, count: int) -> None:
        """Remember that the first ``count`` blocks of a prompt were cached once."""
        if count > served.stored:
            self._pending.difference_update(served.keys[served.stored : count])
            served.stored = count

    def count(self, served: Served, hit: Hit) -> None:
        """Count a first admission; ``served.position`` is its first computed token."""
        size, keys = self.shared_tokens, served.keys
        ids = served.ids
        runs = _list_runs(ids) if isinstance(ids, (tuple, list)) else self._runs_of(ids)
        seen_tokens = self._seen.add(runs[0], runs[1], served.id_tokens, served.input_tokens)
        saved = served.saved = served.position
        seen = seen_tokens // size
        usable = min(seen, max(0, served.input_tokens - self.uncovered_tokens) // size)
        key_tokens, dropped_tokens = self.draft_needs
        alike = (seen_tokens - key_tokens) // size - dropped_tokens // size
        reach = max(hit.resumed, min(usable, alike))
        known = min(seen, len(keys))
        served.stored = known
        while served.stored and keys[served.stored - 1] in self._pending:
            served.stored -= 1
        self._pending.update(keys[known:])
        stored, found = min(served.stored, reach), min(hit.found, reach)
        marked = min(hit.marked, reach)
        lost = self.lost
        lost["draft"] += (usable - reach) * size
        lost["evicted_block"] += max(0, stored - found) * size
        lost["evicted_checkpoint"] += (marked - hit.resumed) * size
        lost["no_checkpoint"] += (found - marked) * size
        lost["alignment"] += seen_tokens - seen * size
        lost["last_token"] += (seen - usable) * size
        lost["replay"] += hit.resumed * size - saved
        self.in_flight_tokens += max(0, reach - max(stored, found)) * size
        self.requests += 1
        self.prompt_tokens += served.input_tokens
        self.prompt_blocks += len(keys)
        self.found_blocks += hit.found
        self.seen_tokens += seen_tokens
        self.saved_tokens += saved


def _list_runs(ids: Sequence[int]) -> tuple[list[int], list[int]]:
    starts, counts, following = list[int](), list[int](), -1
    for number in ids:
        if counts and number == following:
            counts[-1] += 1
        else:
            starts.append(number)
            counts.append(1)
        following = number + 1
    return starts, counts


Moment = tuple[float, tuple[int, ...]]
"""The time, and the values of the other columns of ``runs.parts.ReplaySeries``."""


_NS = 1e9


class Outcome:
    """Collects what a scheduler reports.

    Moments are at least ``_gap_s`` apart, which doubles when there are too many.
    """

    def __init__(self, points: int, block_tokens: int, client_s: float = 0.0) -> None:
        """Keep ``points`` moments of the series; ``client_s`` pass outside the server."""
        self.rejected: Counter[str] = Counter()  # requests by why they were never served
        self.finished = self.input_tokens = self.output_tokens = 0
        self.pauses = self.evictions = 0  # how often one was paused, or preempted and recomputed
        # until a slot, until the first token, mean time per output token, until the last token
        self.samples_ns: dict[str, list[int]] = {
            name: [] for name in ("queueing", "ttft", "tpot", "latency")
        }
        self.moments: list[Moment] = []
        self._points, self._gap_s, self._next_s = points, 0.0, 0.0
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
        if now_s >= self._next_s:
            self._keep_moment(scheduler, now_s)
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

    def _keep_moment(self, scheduler: "Scheduler", now_s: float) -> None:
        cache, paused = scheduler.cache, len(scheduler.paused)
        held = cache.private, cache.shared, cache.cached, cache.windows
        runs = scheduler.in_slots - paused, paused, len(scheduler.waiting)
        self.moments.append((now_s, held + runs))
        if len(self.moments) > self._points:
            self.moments = self.moments[::2]
            span_s = self.moments[-1][0] - self.moments[0][0]
            self._gap_s = max(2 * self._gap_s, span_s / self._points)
        self._next_s = self.moments[-1][0] + self._gap_s
