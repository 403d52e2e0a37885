"""A replay at a server's own pace: requests begin, answer and end when they did there.

A request begins when its prompt has room, and takes a block for what it generates at even
distances between its first token and its last.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dsv4kv.engines.rule import Variant
from dsv4kv.replay.rules import Pool, open_cache


class Span(NamedTuple):
    """When a request began, gave its first token and ended, in seconds."""

    begin_s: float
    first_s: float
    last_s: float


@dataclass
class Played:
    """What came of it."""

    hits: list[int]  # prompt tokens that every request need not compute
    rejected: int = 0  # requests that can never run
    evicted: list[tuple[float, int]] = field(default_factory=list)  # when, how many blocks
    # blocks that requests held at every moment that was asked for
    used: list[int] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)  # when a request was


_EMPTY, _LOOK, _BEGIN, _STORE, _GROW, _END = range(6)


class Paced:
    """A trace on its way through an engine's cache."""

    def __init__(
        self,
        pool: Pool,  # the cache and the prompts
        rule: Variant,  # an engine's
        spans: Sequence[Span],  # of every request
        *,
        at_once: bool,  # whether others find a prompt as soon as it begins, or when it is computed
        # when the cache lost everything, and requests that ran with it
        emptied: Sequence[float] = (),
        looks: Sequence[float] = (),  # when to look at the blocks in use
        advance: Callable[[], object] = lambda: None,  # is called with every request that begins
    ) -> None:
        self._pool, self._rule, self._spans = pool, rule, spans
        self._at_once, self._advance, self._size = at_once, advance, pool.block_tokens
        self._tokens = pool.table.input_tokens.tolist()
        self._outputs = pool.table.output_tokens.tolist()
        self._played = Played([0] * len(pool.table))
        self._counted: set[int] = set()
        self._late: set[int] = set()  # of those that wait, which should have ended by now
        self._agenda = [(at, -1, _EMPTY) for at in emptied]
        self._agenda += [(at, len(spans), _LOOK) for at in looks]
        self._agenda += [(span.begin_s, n, _BEGIN) for n, span in enumerate(spans)]
        self._empty()

    def run(self) -> Played:
        happens = {_BEGIN: self._come, _STORE: self._store, _GROW: self._grow, _END: self._end}
        heapq.heapify(self._agenda)
        while self._agenda:
            self._now_s, number, what = heapq.heappop(self._agenda)
            if what == _EMPTY:
                self._empty()
            elif what == _LOOK:
                self._played.used.append(self._cache.private + self._cache.shared)
            else:
                happens[what](number)
            if evicted := self._cache.evicted - self._seen:
                self._played.evicted.append((self._now_s, evicted))
                self._seen += evicted
        return self._played

    def _empty(self) -> None:
        self._cache, self._seen = open_cache(self._rule, self._pool), 0
        self._running: dict[int, int] = {}  # blocks of what each has generated, oldest first
        self._resumed: dict[int, int] = {}  # where prompts that are not computed yet go on
        self._due: dict[int, int] = {}  # tokens at which each next needs or frees a block
        self._waiting: deque[int] = deque()

    def _come(self, number: int) -> None:
        self._advance()
        if self._cache.refuses(self._tokens[number]):
            self._played.rejected += 1
        else:
            self._waiting.append(number)
            self._admit()
        _, first_s, last_s = self._spans[number]
        size, tokens = self._size, self._tokens[number]
        grown = -(-(tokens + max(0, self._outputs[number] - 1)) // size) - -(-tokens // size)
        step_s = (last_s - first_s) / max(1, grown)
        heapq.heappush(self._agenda, (first_s, number, _STORE))
        for place in range(grown):
            heapq.heappush(self._agenda, (first_s + (place + 0.5) * step_s, number, _GROW))
        heapq.heappush(self._agenda, (last_s, number, _END))

    def _admit(self) -> None:
        """Begin with those that wait, in their order, as long as there is room."""
        cache, waiting = self._cache, self._waiting
        while waiting:
            number, begun = waiting[0], self._resumed.items()
            promised = sum(
                cache.admitted_blocks(self._tokens[n], at // self._size) for n, at in begun
            )
            if not cache.fits(number, self._tokens[number], promised, self._pool.chunk_tokens):
                return
            self._begin(waiting.popleft())
            if number in waiting:  # it was preempted
                return

    def _begin(self, number: int) -> None:
        hit = self._cache.begin(number, self._tokens[number])
        begun = self._cache.computed_from(hit)
        if number not in self._counted:
            self._played.hits[number] = begun
            self._counted.add(number)
        self._running[number], self._resumed[number] = 0, begun
        late = number in self._late
        if self._at_once or late:
            self._store(number)
        if late and number in self._running:
            self._let_go(number)

    def _store(self, number: int) -> None:
        begun = self._resumed.pop(number, None)
        if begun is None:
            return
        tokens, cache = self._tokens[number], self._cache
        for end in cache.chunk_ends(begun, tokens):
            while cache.lacks(number, end):
                if self._preempt() == number:
                    return
            cache.compute(number, end)
        if self._outputs[number] > 1:
            cache.decode(number)
            cache.lacks(number, tokens + 1)  # frees what is behind windows

    def _grow(self, number: int) -> None:
        """Take a block for what is generated; the youngest request gives way."""
        if number not in self._running:
            return
        cache, tokens = self._cache, self._tokens[number]
        if cache.reserves:  # its windows move on, too
            end = (-(-tokens // self._size) + self._running[number]) * self._size
            position = self._due.get(number, tokens)
            while position <= end:
                while (due := cache.reserve(number, position)) < 0:
                    if self._preempt() == number:
                        return
                position = self._due[number] = max(due, position + 1)
        else:
            while cache.available < 1:
                if self._preempt() == number:
                    return
            cache.get_new_blocks(1)
        self._running[number] += 1

    def _preempt(self) -> int:
        youngest = next(reversed(self._running))
        self._let_go(youngest)
        self._waiting.appendleft(youngest)
        self._played.preempted.append(self._now_s)
        return youngest

    def _end(self, number: int) -> None:
        if number in self._running:
            self._store(number)
        if number in self._running:
            self._let_go(number)
            self._admit()
        elif number in self._waiting:
            self._late.add(number)

    def _let_go(self, number: int) -> None:
        self._resumed.pop(number, None)
        self._due.pop(number, None)
        self._cache.end(number, self._running.pop(number))
