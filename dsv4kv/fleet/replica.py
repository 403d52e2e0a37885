"""A replica: a replay that is given its requests, and what becomes known of it."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.prompts import Below
from dsv4kv.core.served import NEVER, Hit, Served
from dsv4kv.fleet.transfer import Link, Received
from dsv4kv.fleet.views import Asked, View, count_leading
from dsv4kv.replay.build import Parts, Wiring, build_replay
from dsv4kv.replay.tiers import SharedTiers
from dsv4kv.traces.request import Request


class Feed:
    """Requests that a router sends, in the order in which they come; see ``Source``."""

    def __init__(self) -> None:
        """An empty one."""
        self._queue: deque[Served] = deque()

    def add(self, served: Served) -> None:
        """A request comes."""
        self._queue.append(served)

    @property
    def next_s(self) -> float:
        """When the next one came."""
        return self._queue[0].arrival_s if self._queue else NEVER

    def take(self, now_s: float, in_flight: int) -> Served | None:
        """The next one if it has come."""
        return self._queue.popleft() if self.next_s <= now_s else None


class News(NamedTuple):
    """What a turn of a replica changed.

    Attributes:
        answered: Requests that have their first token.
        ended: Requests that have their last, or were rejected.
        stored: Shared blocks that were cached.
        evicted: Shared blocks that were evicted.
        waiting: Requests without a slot.
        running: Requests with one.
        usage: Part of the blocks in use.
    """

    answered: list[int]
    ended: list[int]
    stored: list[int]
    evicted: list[int]
    waiting: int
    running: int
    usage: float


class Journal:
    """In front of the tiers below a cache: writes down what it stores and evicts; see ``Below``.

    An engine's rule does not report what it evicts.
    """

    def __init__(self, below: Below | None) -> None:
        self._below = below
        self._announced: dict[int, int] = {}  # blocks, by number of the request
        self._stored: list[int] = []
        self._evicted: list[int] = []

    @property
    def fetches(self) -> bool:
        """As below."""
        return self._below is not None and self._below.fetches

    def fetch(self, served: Served, found: int, usable: int) -> None:
        """As below."""
        if self._below:
            self._below.fetch(served, found, usable)

    def restore(self, served: Served, hit: Hit, usable: int) -> Hit:
        """As below."""
        return self._below.restore(served, hit, usable) if self._below else hit

    def offer(self, served: Served, blocks: int, tails: Sequence[int]) -> None:
        """Blocks are cached."""
        before = self._announced.get(served.number, 0)
        if blocks > before:
            self._stored += served.keys[before:blocks]
            self._announced[served.number] = blocks
        if self._below:
            self._below.offer(served, blocks, tails)

    def forget(self, blocks: Sequence[int], tails: Sequence[int]) -> None:
        """Blocks are evicted."""
        self._evicted += blocks
        if self._below:
            self._below.forget(blocks, tails)

    def end(self, numbers: Sequence[int]) -> None:
        """Requests have ended."""
        for number in numbers:
            self._announced.pop(number, None)

    def take(self) -> tuple[list[int], list[int]]:
        """What was stored and evicted since this was last asked."""
        changes = self._stored, self._evicted
        self._stored, self._evicted = [], []
        return changes


class Replica:
    """One server.

    Attributes:
        name: What it does, and which it is.
        config: How it is set.
        settings: In what it differs from the rest of the configuration, as a line of text.
        parts: What it has in common with others that are set alike.
        replay: It.
        link: What it sends prompts over.
        received: What is sent to it, where it decodes and does nothing else.
        served: Requests that it was given, in their order.
        ended: Those that have ended, or were rejected, since this was last emptied.
    """

    def __init__(
        self,
        name: str,
        config: ReplayConfig,
        parts: Parts,
        trace: Sequence[Request],
        shared: SharedTiers,
        *,
        decodes: bool,
        announces: bool,
        settings: str = "",
    ) -> None:
        """``announces``: what it caches and evicts is to be known."""
        self.name, self.config, self.parts = name, config, parts
        self.settings = settings
        self.link = Link(config, parts.memory)
        self.received: Received | None = None
        if decodes:
            self.received = Received(lambda: self.replay.scheduler.clock, parts.shared_tokens)
        self.served: list[Served] = []
        self.ended: list[Served] = []
        self._feed = Feed()
        self._journal: Journal | None = None
        self._announces = announces
        self._unanswered: dict[int, Served] = {}
        wiring = Wiring(parts, self._feed, self._cover, shared)
        self.replay = build_replay(config, trace, wiring=wiring)
        self.replay.scheduler.ended = self.ended

    # ---- what it does ---------------------------------------------------------------------------

    def give(self, served: Served) -> None:
        """A request comes."""
        self.served.append(served)
        self._unanswered[served.number] = served
        self._feed.add(served)

    @property
    def now_s(self) -> float:
        """Its time."""
        return self.replay.scheduler.clock.now_s

    def turn(self, until_s: float) -> tuple[bool, float]:
        """Take a turn; returns whether it was taken or put off, and when to ask again."""
        scheduler = self.replay.scheduler
        moved = scheduler.turn(until_s)
        return moved, scheduler.clock.now_s if moved else scheduler.next_s

    def take_news(self) -> News:
        """What has changed since this was last asked."""
        scheduler = self.replay.scheduler
        answered = [n for n, each in self._unanswered.items() if each.first_token_s is not None]
        ended = [served.number for served in self.ended]
        for number in (*answered, *ended):
            self._unanswered.pop(number, None)
        if self._journal:
            self._journal.end(ended)
        stored, evicted = self._journal.take() if self._journal else ([], [])
        ledger = scheduler.cache
        usage = (ledger.total - ledger.available) / ledger.total
        waiting, running = len(scheduler.waiting), scheduler.in_slots
        return News(answered, ended, stored, evicted, waiting, running, usage)

    def found_tokens(self, served: Served) -> int:
        """Leading tokens of a prompt that are cached."""
        return self.replay.scheduler.prompts.look_up(served) * self.parts.shared_tokens

    def tokens_below(self, served: Served, found_tokens: int, until_s: float) -> dict[str, int]:
        """Tokens behind those on its GPUs that its tiers had by then, each behind the one before.

        There must be tiers. Of one that others share it is all behind those on the GPUs.
        """
        tiers, found = self.replay.tiers, dict[str, int]()
        assert tiers is not None
        size, each = tiers.object_tokens // self.parts.shared_tokens, tiers.object_tokens
        keys = served.keys[size - 1 :: size]
        first = reach = found_tokens // each
        for tier in tiers.tiers:
            shared = tier.name in self.config.fleet.shared_tiers
            begin = end = first if shared else reach
            while end < len(keys) and tier.shelf.ready_s(keys[end]) <= until_s:
                end += 1
            found["shared" if shared else tier.name] = (end - begin) * each
            reach = max(reach, end)
        return found

    def _cover(self, below: Below | None) -> Below | None:
        below = self.received or below
        if not self._announces:
            return below
        self._journal = Journal(below)
        return self._journal


class Known:
    """What a router knows of a replica: the requests that it sent, and what the replica reported.

    Attributes:
        replica: Whom.
    """

    def __init__(self, replica: Replica, looks: frozenset[str]) -> None:
        """``looks`` is what the router wants to know, as ``Router`` has it."""
        self.replica, self._looks = replica, looks
        self._given: dict[int, tuple[Asked, int]] = {}  # with tokens to compute
        self._prefill_tokens = self._used_tokens = 0
        self._used: dict[int, int] = {}  # blocks, by how many use them
        self._cached: set[int] = set()
        self._view = View()

    def give(self, asked: Asked, found_tokens: int) -> None:
        """A request was sent there, where so many tokens of it are known to be cached."""
        rest = max(0, asked.input_tokens - found_tokens)
        self._given[asked.number] = asked, rest
        self._prefill_tokens += rest
        if "blocks" in self._looks:
            self._used_tokens += asked.input_tokens - self._in_use(asked)
            self._use(asked.blocks)

    def hear(self, news: News) -> None:
        """What became of requests; the rest of the news takes its time."""
        for number in news.answered:
            asked, rest = self._given.pop(number)
            self._prefill_tokens -= rest
            self._given[number] = asked, 0
        for number in news.ended:
            asked, rest = self._given.pop(number)
            self._prefill_tokens -= rest
            if "blocks" in self._looks:
                self._release(asked)

    def hear_late(self, news: News) -> None:
        """What it announced of its cache, and its load."""
        self._cached.difference_update(news.evicted)
        self._cached.update(news.stored)
        view = self._view
        view.waiting, view.running, view.usage = news.waiting, news.running, news.usage

    def view(self, asked: Asked, served: Served, until_s: float) -> View:
        """What it knows when a request comes; of tiers what was in them by then."""
        view = self._view
        view.requests, view.prefill_tokens = len(self._given), self._prefill_tokens
        if "prefix" in self._looks:
            view.device_tokens = self._found(served)
            if self.replica.replay.tiers:
                below = self.replica.tokens_below(served, view.device_tokens, until_s)
                view.host_tokens, view.disk_tokens = below.get("host", 0), below.get("disk", 0)
                view.shared_tokens = below.get("shared", 0)
        if "blocks" in self._looks:
            tokens = self._used_tokens + asked.input_tokens - self._in_use(asked)
            view.decode_blocks = -(-tokens // self.replica.parts.memory.block_tokens)
        return view

    def _found(self, served: Served) -> int:
        """Tokens that are known to be cached; an engine's rule does not report what it evicted."""
        parts = self.replica.parts
        tokens = count_leading(served.keys, self._cached) * parts.shared_tokens
        if tokens and parts.engine:
            return min(tokens, self.replica.found_tokens(served))
        return tokens

    def _use(self, blocks: Sequence[int]) -> None:
        """Whoever uses a block uses those before it, so those in use are the first of them."""
        used, shared = self._used, count_leading(blocks, self._used)
        for block in blocks[:shared]:
            used[block] += 1
        used.update(dict.fromkeys(blocks[shared:], 1))

    def _release(self, asked: Asked) -> None:
        """Of blocks that others use, too, these are the first."""
        used, blocks = self._used, asked.blocks
        shared = bisect_left(blocks, True, key=lambda block: used[block] == 1)
        for block in blocks[:shared]:
            used[block] -= 1
        for block in blocks[shared:]:
            del used[block]
        self._used_tokens -= asked.input_tokens - self._in_use(asked)

    def _in_use(self, asked: Asked) -> int:
        """Leading tokens of a prompt whose blocks are in use: those before one that is, are."""
        return count_leading(asked.blocks, self._used) * asked.id_tokens
