"""A recorded server against a replay of its requests, and causes of the difference.

Both are counted by the minute. What explains the difference is replayed with one thing changed at
a time, so every cause has its tokens: exactly, or between two bounds. A replay is at the server's
own pace: a request begins when its prompt has room, and takes a block for what it generates at
even distances between its first token and its last.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, starmap
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dsv4kv.engines.names import find_rule
from dsv4kv.engines.rule import Variant
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.record.convert import Recorded
from dsv4kv.record.server import Server
from dsv4kv.replay.rules import Pool, open_cache
from dsv4kv.traces.paths import Ints, find_reuse


class Span(NamedTuple):
    """When a request began, gave its first token and ended, in seconds."""

    begin_s: float
    first_s: float
    last_s: float


_EMPTY, _LOOK, _BEGIN, _STORE, _GROW, _END = range(6)


class Paced:
    """A trace on its way through an engine's cache, and what came of it."""

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
        self.hits = [0] * len(pool.table)  # prompt tokens that every request need not compute
        self.rejected = 0  # requests that can never run
        self.evicted: list[tuple[float, int]] = []  # when, how many blocks
        self.used: list[int] = []  # blocks that requests held at every one of ``looks``
        self.preempted: list[float] = []  # when a request was
        self._counted: set[int] = set()
        self._late: set[int] = set()  # of those that wait, which should have ended by now
        self._agenda = [(at, -1, _EMPTY) for at in emptied]
        self._agenda += [(at, len(spans), _LOOK) for at in looks]
        self._agenda += [(span.begin_s, n, _BEGIN) for n, span in enumerate(spans)]
        self._empty()

    def run(self) -> Self:
        happens = {_BEGIN: self._come, _STORE: self._store, _GROW: self._grow, _END: self._end}
        heapq.heapify(self._agenda)
        while self._agenda:
            self._now_s, number, what = heapq.heappop(self._agenda)
            if what == _EMPTY:
                self._empty()
            elif what == _LOOK:
                self.used.append(self._cache.private + self._cache.shared)
            else:
                happens[what](number)
            if evicted := self._cache.evicted - self._seen:
                self.evicted.append((self._now_s, evicted))
                self._seen += evicted
        return self

    def _empty(self) -> None:
        self._cache, self._seen = open_cache(self._rule, self._pool), 0
        self._running: dict[int, int] = {}  # blocks of what each has generated, oldest first
        self._resumed: dict[int, int] = {}  # where prompts that are not computed yet go on
        self._due: dict[int, int] = {}  # tokens at which each next needs or frees a block
        self._waiting: deque[int] = deque()

    def _come(self, number: int) -> None:
        self._advance()
        if self._cache.refuses(self._tokens[number]):
            self.rejected += 1
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
            self.hits[number] = begun
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
        self.preempted.append(self._now_s)
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


MINUTE_S = 60.0
_POOLS, _BETWEEN = (3 / 4, 1 / 2, 1 / 4), 1 / 8
"""Parts of the pool that may fit better what the server did, then those next to the best."""
MOST_PLAYS = 11  # how often requests are replayed at most
_BETTER = 0.8  # a smaller pool is named if it leaves less than this of the difference
_NOTABLE = 0.01  # of all prompt tokens
_ORDER = 0.9  # a pool so much smaller bounds what another order of eviction may lose

Rows = Sequence[tuple[float, int]]  # when, and how many


@dataclass(frozen=True, slots=True)
class Side:
    """What the server or the replay did in a minute, or in all; None where it is not known."""

    hit_tokens: int | None
    evicted: int | None
    used: int | None  # most blocks that requests held when the server was looked at
    preempted: int | None


@dataclass(frozen=True, slots=True)
class Minute:
    """A minute, counted from the first arrival."""

    number: int  # which, from 0; -1 for all of them
    requests: int  # that arrived in it
    prompt_tokens: int  # of those for which the server reported what it found
    server: Side
    replay: Side


@dataclass(frozen=True, slots=True)
class Cause:
    """What makes the server find more tokens than the replay, or fewer."""

    name: str
    # tokens more than the replay that it explains at least; negative where they are fewer
    low: int
    high: int  # at most; the same where it is known exactly
    seen: str  # where that is known from


@dataclass(frozen=True)
class Against:
    """The comparison."""

    total: Minute
    minutes: list[Minute]
    causes: list[Cause]  # what explains the difference, the surest first
    unexplained: int  # tokens of the difference that no cause reaches
    cautions: list[str]

    @property
    def difference(self) -> int:
        """Tokens that the server found and the replay did not; negative if it is the other."""
        return (self.total.server.hit_tokens or 0) - (self.total.replay.hit_tokens or 0)


def check_comparable(recorded: Recorded, server: Server) -> None:
    """Refuse a recording that a ``Comparison`` can do nothing with; raises ``TraceError``."""
    if recorded.stores_only:
        raise TraceError(
            "stores-only: requests were not recorded, so there is nothing to replay against: give "
            "record --proxy or --requests, too."
        )
    if not any(request.hash_block_tokens for request in recorded.requests):
        raise TraceError(
            "no prompt has ids, so what they share is not known: record a log with tokens "
            "(SGLang's --log-requests-level 3, vLLM's VLLM_LOGGING_LEVEL=DEBUG), or --proxy."
        )
    if not server.counted and all(found is None for found in recorded.cached_tokens):
        raise TraceError(
            "the server did not say how many tokens it found: record its --metrics, or let it "
            "report them in every answer (vLLM: --enable-prompt-tokens-details, SGLang: "
            "--enable-cache-report)."
        )


def spans_of(recorded: Recorded) -> list[Span]:
    """When requests ran; a request without a known end ends as it begins."""
    spans = []
    rows = zip(recorded.requests, recorded.first_s, recorded.last_s, strict=True)
    for request, first_s, last_s in rows:
        begin_s = request.arrival_s
        end_s = max(begin_s, last_s if last_s is not None else begin_s)
        spans.append(Span(begin_s, min(max(begin_s, first_s or begin_s), end_s), end_s))
    return spans


class Comparison:
    """Requests of a server, replayed at its pace."""

    def __init__(
        self,
        recorded: Recorded,
        server: Server,
        rule: str,
        pool: Pool,
        advance: Callable[[], object] = lambda: None,
    ) -> None:
        """``advance`` is called with every request of ``MOST_PLAYS`` replays at most."""
        if not find_rule(rule).engine:
            raise ConfigError(f"the rule {rule} is no server's: take an engine's, with --rule.")
        self._recorded, self._server, self._pool = recorded, server, pool
        self._advance = advance
        self._rule = find_rule(rule)
        self._spans = spans_of(recorded)
        self._restarts = [self._since(begin) for begin, _ in server.restarts]
        self._looks = [self._since(at) for at, _ in server.used]
        self._reported = np.array([found is not None for found in recorded.cached_tokens])
        self._found = np.array([found or 0 for found in recorded.cached_tokens], np.int64)
        if not self._reported.any():
            self._reported[:] = True  # counters speak of all
        self._by_request = any(found is not None for found in recorded.cached_tokens)
        table = pool.table
        seen = find_reuse(table, table.block_tokens).found_tokens(None)
        self._beyond = np.where(self._reported, np.maximum(self._found - seen, 0), 0)

    def explain(self) -> Against:
        plain = self._play(emptied=())
        causes = self._causes(plain) if self._apart(plain) else []
        return self._report(plain, [cause for cause in causes if cause.low or cause.high])

    def _causes(self, plain: Paced) -> list[Cause]:
        causes, model = list[Cause](), plain
        if self._restarts:
            model = self._play()
            times = f"{len(self._restarts)}, at " + ", ".join(map(_clock, self._restarts[:3]))
            causes.append(self._cause("the cache began anew", plain, model, times))
        causes += self._unrecorded(model)
        smaller = self._smaller_pool(model)
        if smaller is not None:
            blocks, better = smaller
            of = f"{blocks:,} of {self._pool.blocks:,} blocks fit what it found best"
            causes.append(self._cause("a smaller pool than stated", model, better, of))
            model = better
            self._pool = replace(self._pool, tokens=blocks * self._pool.block_tokens)
        causes += self._unseen()
        causes += self._ids_of_text(model)
        causes += self._in_flight(model)
        causes += self._order(model)
        return causes

    def _cause(self, name: str, before: Paced, after: Paced, seen: str) -> Cause:
        grown = self._sum(after) - self._sum(before)
        return Cause(name, grown, grown, seen)

    def _between(self, name: str, model: Paced, others: Sequence[Paced], seen: str) -> Cause:
        """What is between the replay and others of it, where the server's hits are there, too.

        Request by request: no more than it differs, and no more than the others do.
        """
        hits = [np.array(each.hits)[self._reported] for each in (model, *others)]
        fewer, more = (each - hits[0] for each in (np.min(hits, axis=0), np.max(hits, axis=0)))
        if self._by_request:
            apart = (self._found - self._beyond)[self._reported] - hits[0]
            fewer, more = np.maximum(fewer, np.minimum(apart, 0)), np.clip(apart, 0, more)
        return Cause(name, int(fewer.sum()), int(more.sum()), seen)

    def _unrecorded(self, model: Paced) -> Iterator[Cause]:
        ends = [self._since(end) for _, end in self._server.unrecorded]
        inside = [end for end in ends if self._spans[0].begin_s < end < self._spans[-1].begin_s]
        if inside:
            emptied = self._play(emptied=sorted([*self._restarts, *inside]))
            times = f"{len(inside)}, until " + ", ".join(map(_clock, inside[:3]))
            yield self._between("recording paused", model, [emptied], times)

    def _smaller_pool(self, model: Paced) -> tuple[int, Paced] | None:
        """A smaller pool with which the replay finds what the server found, if there is one."""
        apart = self._apart(model)
        size = self._pool.block_tokens
        best: tuple[int, int, Paced] | None = None
        if apart < _NOTABLE * self._asked:
            return None
        for shares in (_POOLS, (-_BETWEEN, _BETWEEN)):
            middle = best[1] if best and shares is not _POOLS else 0
            for share in shares:
                blocks = middle + int(self._pool.blocks * share)
                tried = self._play(tokens=blocks * size)
                if not tried.rejected and (best is None or self._apart(tried) < best[0]):
                    best = self._apart(tried), blocks, tried
        if best is None or best[0] > _BETTER * apart:
            return None
        return best[1], best[2]

    def _unseen(self) -> Iterator[Cause]:
        """Found, although no prompt of the recording had it before."""
        if not self._by_request:
            return
        by_length = np.array([of == "length" for of in self._recorded.ids_of])
        known, unknown = (int(self._beyond[rows].sum()) for rows in (~by_length, by_length))
        yield Cause(
            "cached before the recording, or generated", known, known, "no prompt had it before"
        )
        yield Cause("prompts of unknown tokens", unknown, unknown, "only their length is known")

    def _ids_of_text(self, model: Paced) -> Iterator[Cause]:
        """Ids made of text say only about what prompts share."""
        by_text = np.array([of == "text" for of in self._recorded.ids_of]) & self._reported
        if by_text.any() and self._by_request:
            apart = (self._found - self._beyond - np.array(model.hits))[by_text]
            low, high = int(apart[apart < 0].sum()), int(apart[apart > 0].sum())
            count = f"of {int(by_text.sum()):,} prompts"
            yield Cause("ids made of text", low, high, count)

    def _in_flight(self, model: Paced) -> Iterator[Cause]:
        """Whether prompts are found while they are being computed."""
        if all(one.first_s <= other.begin_s for one, other in pairwise(self._spans)):
            return
        other = self._play(at_once=not self._rule.policy.finds_scheduled)
        name = "prompts found while they are computed"
        yield self._between(name, model, [other], "replayed both ways")

    def _order(self, model: Paced) -> Iterator[Cause]:
        if not model.evicted:
            return
        size, blocks = self._pool.block_tokens, self._pool.blocks
        roomy = self._play(tokens=size * 16 * blocks)
        tight = self._play(tokens=size * int(_ORDER * blocks))
        name, seen = "order of eviction", f"pools of {_ORDER:.0%} and of any size"
        yield self._between(name, model, [tight, roomy], seen)

    @property
    def _asked(self) -> int:
        return int(self._pool.table.input_tokens[self._reported].sum())

    @property
    def _answered(self) -> int:
        if self._by_request:
            return int(self._found[self._reported].sum())
        return sum(found for _, found, _ in self._server.counted)

    def _play(
        self,
        *,
        tokens: int | None = None,
        at_once: bool | None = None,
        emptied: Sequence[float] | None = None,
    ) -> Paced:
        """A replay with another pool, or what is in flight found, or other restarts."""
        return Paced(
            self._pool if tokens is None else replace(self._pool, tokens=tokens),
            self._rule,
            self._spans,
            at_once=self._rule.policy.finds_scheduled if at_once is None else at_once,
            emptied=self._restarts if emptied is None else emptied,
            looks=self._looks,
            advance=self._advance,
        ).run()

    def _sum(self, played: Paced) -> int:
        return int(np.array(played.hits)[self._reported].sum())

    def _apart(self, played: Paced) -> int:
        """Tokens by which requests differ; in all, where only counters have them."""
        if not self._by_request:
            return abs(self._answered - self._sum(played))
        hits = np.array(played.hits)
        return int(np.abs(self._found - hits)[self._reported].sum())

    def _since(self, at_s: float) -> float:
        return at_s - self._recorded.begun_s

    def _report(self, played: Paced, causes: list[Cause]) -> Against:
        difference = self._answered - self._sum(played)
        low, high = sum(each.low for each in causes), sum(each.high for each in causes)
        rest = min(0, difference - low) if difference < low else max(0, difference - high)
        starts = np.array([span.begin_s for span in self._spans])
        places = (starts // MINUTE_S).astype(np.int64)
        tokens = self._pool.table.input_tokens * self._reported
        rows = self._rows(played, starts)
        last = int(places.max())
        moments = {
            int(at // MINUTE_S) for side in rows for column in side for at, _ in column or ()
        }
        # those in which something was: a clock that was set may leave decades between two
        numbers = sorted({*places.tolist(), *(at for at in moments if 0 <= at <= last)})
        at = np.searchsorted(numbers, places)
        requests, asked = (np.bincount(at, each, len(numbers)) for each in (None, tokens))
        sides = [_by_minute(each, numbers) for each in rows]
        minutes = [
            Minute(number, int(requests[n]), int(asked[n]), sides[0][0][n], sides[1][0][n])
            for n, number in enumerate(numbers)
        ]
        total = Minute(-1, len(starts), self._asked, *(whole for _, whole in sides))
        return Against(total, minutes, causes, rest, list(self._cautions(played)))

    def _rows(self, played: Paced, starts: NDArray[np.float64]) -> list[Sequence[Rows | None]]:
        """What the server and the replay counted, by the fields of ``Side``."""
        server, since, known = self._server, self._since, self._reported

        def of_requests(tokens: Ints) -> Rows:
            return list(zip(starts[known].tolist(), tokens[known].tolist(), strict=True))

        def of_server(rows: Sequence[tuple[float, int]] | None) -> Rows | None:
            return None if rows is None else [(since(at), count) for at, count in rows]

        found = [(since(at), count) for at, count, _ in server.counted]
        used = [(since(at), round(share * self._pool.blocks)) for at, share in server.used]
        theirs = of_server(server.evicted), used, of_server(server.preempted)
        looks = list(zip(self._looks, played.used, strict=False))
        ours = played.evicted, looks, [(at, 1) for at in played.preempted]
        return [
            (of_requests(self._found) if self._by_request else found, *theirs),
            (of_requests(np.array(played.hits)), *ours),
        ]

    def _cautions(self, played: Paced) -> Iterator[str]:
        if played.rejected:
            yield f"{played.rejected:,} requests are too long for the pool of the replay"
        if self._server.replicas > 1:
            yield (
                f"{self._server.replicas} ranks have caches of their own, and the replay is of "
                "one: record replicas separately"
            )
        if self._server.lost_messages:
            yield f"{self._server.lost_messages:,} messages of events were lost: evictions too"
        grain, size = self._pool.table.block_tokens, self._pool.block_tokens
        if grain > size:
            yield (
                f"ids are of {grain} tokens and the server's blocks of {size}: what prompts share "
                f"beyond whole ids is not known; record with --id-tokens {size}"
            )
        unreported = int((~self._reported).sum())
        if unreported:
            yield f"for {unreported:,} requests the server did not report what it found"
        if not any(last is not None for last in self._recorded.last_s):
            yield "when requests ended is not known: they are replayed one after the other"
        asked = sum(asked for _, _, asked in self._server.counted)
        recorded = int(self._pool.table.input_tokens.sum())
        if asked > recorded * (1 + _NOTABLE):
            yield (
                f"the server counted {asked:,} prompt tokens and {recorded:,} were recorded: "
                "others use it, too"
            )


def _by_minute(columns: Sequence[Rows | None], numbers: Sequence[int]) -> tuple[list[Side], Side]:
    """Every minute, and all of them: hits and evictions outside the minutes, too."""
    most = partial(max, default=None)
    folds: list[Callable[[Sequence[int]], int | None]] = [sum, sum, most, sum]
    table = list[list[int | None]]()
    for rows, fold in zip(columns, folds, strict=True):
        minutes = defaultdict[int, list[int]](list)
        for at, number in rows or ():
            minutes[int(at // MINUTE_S)].append(number)
        table.append([None if rows is None else fold(minutes[minute]) for minute in numbers])
    found, gone = (None if rows is None else sum(n for _, n in rows) for rows in columns[:2])
    used = max((each for each in table[2] if each is not None), default=None)
    stopped = None if columns[3] is None else sum(each or 0 for each in table[3])
    return list(starmap(Side, zip(*table, strict=True))), Side(found, gone, used, stopped)


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(max(0, round(at_s)), 60)
    return f"{minutes}:{seconds:02}"
