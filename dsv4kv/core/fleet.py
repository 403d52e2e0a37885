"""A replica behind a router: it takes its turns up to when it is asked, and what it has reported.

What it does in between depends on no other, unless replicas share a tier, send prompts or requests
wait for answers. So it is advanced when a router looks at it, or sends it a request.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dsv4kv.core.prompts import Journal
from dsv4kv.core.scheduler import Scheduler
from dsv4kv.core.served import NEVER, Served


@dataclass
class View:
    """What a router knows of a replica when a request comes."""

    requests: int = 0  # requests that it was sent and that have not ended
    prefill_tokens: int = 0  # prompt tokens to compute of requests that it was sent
    decode_blocks: int = 0  # blocks in use by requests that it was sent, and by this one
    device_tokens: int = 0  # leading prompt tokens that are known to be cached on the GPUs
    host_tokens: int = 0  # tokens behind these in host memory
    disk_tokens: int = 0  # tokens behind these on a disk of the replica
    waiting: int = 0  # of its requests, without a slot, as last reported
    usage: float = 0.0  # share of its blocks in use, as last reported


def count_leading(blocks: Sequence[int], known: Container[int]) -> int:
    """Leading blocks that are known: none is without those before it."""
    if not len(blocks) or blocks[0] not in known:
        return 0
    low, high = 1, len(blocks)
    while low < high:
        middle = (low + high) // 2
        if blocks[middle] in known:
            low = middle + 1
        else:
            high = middle
    return low


class InUse:
    """Blocks that requests on a replica use, by the ids of the trace."""

    def __init__(self) -> None:
        self.tokens = 0
        self._users: dict[int, int] = {}

    def tokens_with(self, served: Served) -> int:
        return self.tokens + served.input_tokens - self._shared(served)

    def add(self, served: Served) -> None:
        """A request that uses a block uses those before it: the blocks in use are a prefix."""
        self.tokens = self.tokens_with(served)
        users, blocks = self._users, served.trace_blocks
        shared = count_leading(blocks, users)
        for place, block in enumerate(blocks):
            users[block] = users[block] + 1 if place < shared else 1

    def remove(self, served: Served) -> None:
        """Of its blocks those that others use, too, are the first."""
        users, blocks = self._users, served.trace_blocks
        shared = bisect_left(blocks, True, key=lambda block: users[block] == 1)
        for place, block in enumerate(blocks):
            if place < shared:
                users[block] -= 1
            else:
                del users[block]
        self.tokens -= served.input_tokens - self._shared(served)

    def _shared(self, served: Served) -> int:
        return count_leading(served.trace_blocks, self._users) * served.id_tokens


class Report(NamedTuple):
    """What a replica announces after a turn: its load, and what it stored and evicted."""

    time_s: float
    waiting: int
    usage: float
    stored: list[int]
    evicted: list[int]


class Endpoint:
    """Where a router sends requests to: the ``Source`` of a scheduler, which it watches."""

    def __init__(
        self, looks: Container[str], delay_s: float, shared_tokens: int, block_tokens: int
    ) -> None:
        """``looks`` as in ``Router``; what is reported is known ``delay_s`` later."""
        self.served: list[Served] = []  # requests that it was sent, in their order
        # requests that ended or were rejected since this was last emptied
        self.ended: list[Served] = []
        # what is stored and evicted; None where the router does not look
        self.journal: Journal | None = None
        self._prefix, self._blocks = "prefix" in looks, "blocks" in looks
        self._load = "load" in looks
        self._delay_s = delay_s
        self._shared_tokens, self._block_tokens = shared_tokens, block_tokens
        self._scheduler: Scheduler | None = None
        self._peeks = False
        self._feed: deque[Served] = deque()
        self._quiet_s = 0.0  # nothing to report happens before
        self._sent: dict[int, tuple[Served, int]] = {}  # not known to have ended; to compute
        self._unanswered: list[Served] = []
        self._ends: deque[tuple[float, int]] = deque()
        self._late: deque[Report] = deque()
        self._last = View()
        self._prefill_tokens = 0
        self._in_use = InUse()
        self._cached: set[int] = set()

    def run_by(self, scheduler: Scheduler, *, peeks: bool) -> None:
        """Set who serves; ``peeks`` where its cache does not report all that it evicts."""
        self._scheduler, self._peeks = scheduler, peeks
        if self._prefix:
            self.journal = scheduler.prompts.keep_journal()
        scheduler.ended = list[Served]()

    @property
    def next_s(self) -> float:
        return self._feed[0].arrival_s if self._feed else NEVER

    def take(self, now_s: float, in_flight: int) -> Served | None:
        return self._feed.popleft() if self._feed and self._feed[0].arrival_s <= now_s else None

    def give(self, served: Served) -> None:
        """A request comes, and all turns that begin before it were taken."""
        self.served.append(served)
        self._feed.append(served)
        self._quiet_s = 0.0

    def turn(self, until_s: float) -> float:
        """Take a turn, or wait up to ``until_s``; returns when there is something to do next."""
        scheduler = self._scheduler
        assert scheduler is not None
        moved = scheduler.turn(until_s)
        journal, ended = self.journal, scheduler.ended
        if ended:
            self.ended.extend(ended)
            for served in ended:
                self._ends.append((served.ended_s, served.number))
                if journal is not None:
                    journal.end(served.number)
            ended.clear()
        if not moved:
            self._quiet_s = scheduler.next_s
            return self._quiet_s
        if self._load or (journal is not None and (journal.stored or journal.evicted)):
            cache = scheduler.cache
            usage = (cache.total - cache.available) / cache.total
            stored, evicted = journal.take() if journal is not None else ([], [])
            report = Report(scheduler.clock.now_s, len(scheduler.waiting), usage, stored, evicted)
            self._late.append(report)
        self._quiet_s = scheduler.quiet_s
        return scheduler.clock.now_s

    def advance(self, until_s: float) -> None:
        assert self._scheduler is not None
        clock = self._scheduler.clock
        while clock.now_s < until_s and self.turn(until_s) < until_s:
            pass

    def look(self, served: Served, keys: Sequence[int]) -> View:
        """What is known when a request comes; ``keys`` are its shared blocks."""
        now_s = served.arrival_s
        if self._quiet_s < now_s:
            self.advance(now_s)
        self._hear(now_s)
        view = self._last
        view.requests, view.prefill_tokens = len(self._sent), self._prefill_tokens
        if self._prefix:
            view.device_tokens = self._found(served, keys)
        if self._blocks:
            view.decode_blocks = -(-self._in_use.tokens_with(served) // self._block_tokens)
        return view

    def send(self, served: Served, found_tokens: int) -> None:
        """A request was sent here; ``found_tokens`` of it are known to be cached."""
        rest = max(0, served.input_tokens - found_tokens)
        self._sent[served.number] = (served, rest)
        self._unanswered.append(served)
        self._prefill_tokens += rest
        if self._blocks:
            self._in_use.add(served)

    def _hear(self, now_s: float) -> None:
        """Count what was reported up to now, and what takes its time, up to some time ago."""
        waiting = []
        for served in self._unanswered:
            answered_s = served.first_token_s
            if answered_s is None or answered_s > now_s:
                waiting.append(served)
            elif served.number in self._sent:
                self._prefill_tokens -= self._sent[served.number][1]
                self._sent[served.number] = (served, 0)
        self._unanswered = waiting
        while self._ends and self._ends[0][0] <= now_s:
            served, rest = self._sent.pop(self._ends.popleft()[1])
            self._prefill_tokens -= rest
            if self._blocks:
                self._in_use.remove(served)
        view = self._last
        while self._late and self._late[0].time_s + self._delay_s <= now_s:
            report = self._late.popleft()
            self._cached.difference_update(report.evicted)
            self._cached.update(report.stored)
            view.waiting, view.usage = report.waiting, report.usage

    def _found(self, served: Served, keys: Sequence[int]) -> int:
        """Tokens that are known to be cached and, where evictions are not reported, still are."""
        found = count_leading(keys, self._cached)
        if found and self._peeks:
            assert self._scheduler is not None
            found = min(found, self._scheduler.prompts.look_up(served))
        return found * self._shared_tokens
