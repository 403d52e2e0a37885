"""A request on its way through a replay, and where requests come from."""

from bisect import insort
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from dsv4kv.core.tree import Lease

NEVER = float("inf")


class Hit(NamedTuple):
    """What a request found, in blocks of context."""

    resumed: int  # where it resumes
    found: int  # what is cached of its context alone
    marked: int  # the last of these whose window and state were ever cached
    short_tokens: int = 0  # tokens before ``resumed`` at which it does


_NO_MARKS: list[int] = []


class Served:
    """One request; lengths in tokens."""

    __slots__ = (
        "_keys", "_trace_blocks", "admitted_s", "arrival_s", "begun", "blocked_by", "blocks",
        "committed", "deferred", "due", "ended_s", "evictions", "find_keys", "finished_s",
        "first_token_s", "found", "generated", "id_tokens", "ids", "input_tokens", "lease", "left",
        "marks", "number", "offered", "output_tokens", "pauses", "place", "position",
        "prompt_tokens", "rank", "reached", "ready_s", "saved", "sent_tokens", "session", "stored",
        "verified", "windows",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        arrival_s: float,
        input_tokens: int,
        output_tokens: int,
        find_keys: "Callable[[Served], list[int]]",
        ids: Sequence[int],
        id_tokens: int,
    ) -> None:
        self.number = number  # place in the trace
        self.arrival_s = arrival_s  # when it comes
        self.prompt_tokens = input_tokens  # with what it had generated, after an eviction
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.find_keys = find_keys
        self.ids = ids  # what the trace calls the blocks of its prompt; the last may be partial
        self.id_tokens = id_tokens  # tokens that an id stands for
        self.generated = 0  # tokens generated so far, as of its last prompt end or pause
        self.position = 0  # tokens in the cache, as of its last chunk
        self.blocks = 0  # blocks it holds, shared ones included
        self.found = 0  # shared blocks that were cached when it was admitted
        self.committed = 0  # shared blocks of it that the index holds
        self.saved = 0  # tokens of its prompt that its first admission found, for goldens
        self.stored = 0  # shared blocks of it that are known to have been cached once
        self.reached = 0  # most tokens it ever had in the cache
        self.offered = 0  # objects of it that were offered to the tiers below the GPU
        self.sent_tokens = 0  # tokens of its prompt that another server has computed and sends
        self.lease: Lease | None = None  # what it holds of the prefix tree
        # shared blocks after which it will leave a checkpoint, the next one last
        self.marks = _NO_MARKS
        self.blocked_by: Served | None = None  # the request that computes what it needs next
        self.deferred = False  # whether it ever had to wait for another one's prefix
        self.ready_s = 0.0  # when all is there that a tier brings back for it
        self.ended_s = 0.0  # when it ended or was rejected
        self.admitted_s: float | None = None  # when it was first admitted
        self.first_token_s: float | None = None  # when its prompt ended
        self.finished_s: float | None = None
        self.rank = 0  # which of several replicas in lockstep serves it
        self.place = 0  # how many had been admitted before it was, the last time
        self.evictions = 0  # how often it was preempted and recomputed
        self.pauses = 0
        self.left = 0  # tokens still to be decoded, while it decodes
        self.begun = 0  # tokens with which it began to decode
        self.due = 0  # tokens at which its next step needs or frees something, while it decodes
        self.verified = 0  # steps in which it decoded since it began to
        self.windows = 0  # pages of windows that its decoded tokens hold, where they are counted
        self.session = 0  # its conversation, where a router goes by it
        self._keys: list[int] | None = None
        self._trace_blocks: list[int] | None = None

    @property
    def keys(self) -> list[int]:
        """The whole shared blocks of its prompt.  Many wait: found when first asked for."""
        if self._keys is None:
            self._keys = self.find_keys(self)
        return self._keys

    @property
    def trace_blocks(self) -> list[int]:
        """Ids of the whole blocks of its prompt in the trace; equal ids mean equal history."""
        if self._trace_blocks is None:
            whole = self.input_tokens // self.id_tokens if self.id_tokens else 0
            self._trace_blocks = list(islice(self.ids, whole))
        return self._trace_blocks

    def forget_keys(self) -> None:
        """It has ended: find its keys again if they are asked for."""
        self._keys = self._trace_blocks = None

    @property
    def total_tokens(self) -> int:
        """Tokens in the cache at its end: the last token is only returned."""
        return self.input_tokens + max(0, self.output_tokens - 1)


def insert_by_age(queue: MutableSequence[Served], served: Served) -> None:
    insort(queue, served, key=lambda each: (each.arrival_s, each.number))


class Source(Protocol):
    """Where a scheduler gets its requests from."""

    @property
    def next_s(self) -> float:
        """When the next request comes by itself; ``NEVER`` where none does."""

    def take(self, now_s: float, in_flight: int) -> Served | None:
        """The next request if it has come, with ``in_flight`` others unfinished."""


class Arrivals:
    """Requests at given times, or one for every one fewer in flight than ``concurrency``."""

    def __init__(
        self,
        begin: Callable[[int, float], Served],
        count: int,
        times_s: list[float],
        concurrency: int,
        client_s: float,
    ) -> None:
        """``concurrency`` 0: by times; else ``client_s`` after the answer that one waited for."""
        self._begin, self._count, self._times_s = begin, count, times_s
        self._concurrency, self._client_s = concurrency, client_s
        self._next = 0
        self._coming_s: deque[float] = deque()

    @property
    def next_s(self) -> float:
        if self._concurrency:
            return self._coming_s[0] if self._coming_s else NEVER
        return self._times_s[self._next] if self._next < self._count else NEVER

    def take(self, now_s: float, in_flight: int) -> Served | None:
        if self._concurrency:
            wanted = min(self._count - self._next, self._concurrency - in_flight)
            self._coming_s.extend([now_s + self._client_s] * (wanted - len(self._coming_s)))
        arrival_s = self.next_s
        if arrival_s > now_s or self._next == self._count:
            return None
        if self._concurrency:
            self._coming_s.popleft()
        self._next += 1
        return self._begin(self._next - 1, arrival_s)
