"""A request on its way through the replay."""

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Protocol

from dsv4kv.config.replay import ArrivalSection
from dsv4kv.prefix.index import Lease
from dsv4kv.prefix.tree import Ids
from dsv4kv.replay.sharing import KeysOf, check_order
from dsv4kv.traces.request import Request

_AGE = attrgetter("arrival_s", "number")


@dataclass(slots=True, eq=False)
class Served:
    """One request; lengths in tokens.

    Attributes:
        number: Place in the trace.
        arrival_s: When it comes.
        input_tokens: Its prompt.
        output_tokens: What it generates.
        find_keys: Finds ``keys``.
        ids: What the trace calls the blocks of its prompt; the last may be partial.
        id_tokens: Tokens that an id stands for.
        generated: Tokens generated so far, as of its last prompt end or pause.
        position: Tokens in the cache, as of its last chunk.
        prompt_tokens: Tokens to compute before it decodes: its prompt, and after an eviction
            what it had generated.
        blocks: Blocks it holds, shared ones included.
        lease: What it holds of the prefix index.
        found: Shared blocks that were cached when it was admitted.
        committed: Shared blocks of it that the index holds.
        stored: Shared blocks of it that are known to have been cached once.
        marks: Shared blocks after which it will leave a checkpoint, the next one last.
        blocked_by: The request that computes what it needs next.
        deferred: Whether it ever had to wait for another one's prefix.
        reached: Most tokens it ever had in the cache.
        offered: Objects of it that were offered to the tiers below the GPU.
        sent_tokens: Tokens of its prompt that another server has computed and sends.
        ready_s: When all is there that a tier brings back for it.
        admitted_s: When it was first admitted.
        first_token_s: When its prompt ended.
        finished_s: When it ended.
        rank: Which of several replicas in lockstep serves it.
        place: How many had been admitted before it was, the last time.
        pauses: How often it was paused.
        evictions: How often it was preempted and recomputed.
    """

    number: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    find_keys: Callable[[], Ids]
    ids: Sequence[int]
    id_tokens: int
    generated: int = 0
    position: int = 0
    prompt_tokens: int = 0
    blocks: int = 0
    lease: Lease | None = None
    found: int = 0
    committed: int = 0
    stored: int = 0
    marks: list[int] = field(default_factory=list)
    blocked_by: "Served | None" = None
    deferred: bool = False
    reached: int = 0
    offered: int = 0
    sent_tokens: int = 0
    ready_s: float = 0.0
    admitted_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    rank: int = 0
    place: int = 0
    pauses: int = 0
    evictions: int = 0
    _keys: Ids | None = None

    @property
    def keys(self) -> Ids:
        """int64: the whole shared blocks of its prompt. Many wait: found when first asked for."""
        if self._keys is None:
            self._keys = self.find_keys()
        return self._keys

    @property
    def total_tokens(self) -> int:
        """Tokens in the cache at its end: the last token is only returned."""
        return self.input_tokens + max(0, self.output_tokens - 1)


def insert_by_age(queue: list[Served], served: Served) -> None:
    """Put a request in its place where the oldest is first."""
    insort(queue, served, key=_AGE)


NEVER = float("inf")


class Source(Protocol):
    """Where a scheduler gets its requests from."""

    @property
    def next_s(self) -> float:
        """When the next request comes by itself; ``NEVER`` where none does."""

    def take(self, now_s: float, in_flight: int) -> Served | None:
        """The next request if it has come, where so many are in flight."""


def begin_serving(
    number: int, request: Request, arrival_s: float, keys: KeysOf, longest_output: int | None
) -> Served:
    """A request as it comes; outputs are cut to ``longest_output`` tokens."""
    output = request.output_tokens
    return Served(
        number=number,
        arrival_s=arrival_s,
        input_tokens=request.input_tokens,
        output_tokens=output if longest_output is None else min(output, longest_output),
        find_keys=partial(keys, number, request),
        ids=request.prefix_hashes,
        id_tokens=request.hash_block_tokens,
        prompt_tokens=request.input_tokens,
    )


class Arrivals:
    """Hands out requests when they have come; memory is that of the trace."""

    def __init__(
        self,
        requests: Sequence[Request],
        section: ArrivalSection,
        keys: KeysOf,
        client_s: float = 0.0,
    ) -> None:
        """``keys`` names the blocks of a prompt; raises ``TraceError`` for a wrong order.

        With closed arrivals a request comes ``client_s`` after the answer that it waited for.
        """
        self._closed = section.arrivals == "closed"
        if not self._closed:
            check_order(requests)
        self._requests, self._section, self._keys = requests, section, keys
        self._first_s = requests[0].arrival_s if requests else 0.0
        self._next = 0
        self._client_s, self._coming_s = client_s, deque[float]()

    @property
    def next_s(self) -> float:
        """When the next request comes by itself; ``NEVER`` where none does."""
        if self._closed:
            return self._coming_s[0] if self._coming_s else NEVER
        if self._next == len(self._requests):
            return NEVER
        return self._when(self._requests[self._next])

    def take(self, now_s: float, in_flight: int) -> Served | None:
        """The next request if it has come, where so many are in flight."""
        if self._next == len(self._requests):
            return None
        request = self._requests[self._next]
        if self._closed:
            self._send(now_s, in_flight)
            if self.next_s > now_s:
                return None
            now_s = self._coming_s.popleft()
        elif self._when(request) > now_s:
            return None
        self._next += 1
        return self._serve(request, now_s)

    def _send(self, now_s: float, in_flight: int) -> None:
        """Send a request for every one that fewer than ``concurrency`` are on their way."""
        left = len(self._requests) - self._next
        wanted = min(left, self._section.concurrency - in_flight)
        self._coming_s.extend([now_s + self._client_s] * (wanted - len(self._coming_s)))

    def _when(self, request: Request) -> float:
        return (request.arrival_s - self._first_s) / self._section.speed

    def _serve(self, request: Request, now_s: float) -> Served:
        arrival_s = now_s if self._closed else self._when(request)
        longest = self._section.max_output_tokens
        return begin_serving(self._next - 1, request, arrival_s, self._keys, longest)
