"""Eviction policies: which run of cached keys goes first.

The cache keeps eviction prefix-closed: only a run that nothing follows and no request holds is
*offered*, and a policy chooses among those.  A run that stops being so (``ticket`` 0) is not
chosen until it is offered again.  Sizes are in keys.
"""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from dsv4kv.choices import Choice, choose
from dsv4kv.errors import ConfigError

NEVER = 2**62
_serial = count(1)


class Run:
    """Keys of one tree edge that were cached together and have been used together ever since."""

    __slots__ = (
        "children", "keys", "length", "moment", "parent", "pins", "queue", "rows", "stamp",
        "start", "ticket", "uses", "values",
    )  # fmt: skip

    def __init__(self, parent: "Run | None", keys: list[int], start: int, length: int) -> None:
        self.parent = parent  # the run before; None for the root and for what has been evicted
        self.start = start  # keys before this run
        self.keys, self.length = keys, length
        self.children: dict[int, Run] = {}  # runs after this one, by their first keys
        self.values: list[int] = []  # what is cached for them, where the tree holds values
        # rows that hold the chain up to here, newest first, where its owner keeps some
        self.rows: list[tuple[int, int]] = []
        self.pins = 0  # leases that hold the run or one below it
        # number of its valid entry in its policy's order; 0 while it may not be evicted
        self.ticket = 0
        self.moment = 0  # when it was stored or last used, as its policy counts time
        self.uses = 0  # how often it was used, as its policy counts
        self.queue = 0  # which queue of its policy it is in
        # its place in its policy's order, the least first
        self.stamp: tuple[float, float] = (0.0, 0.0)

    @property
    def end(self) -> int:
        return self.start + self.length


class Order:
    """A heap of offered runs, least stamp first; O(log n) amortised.

    A use sets a run's ``ticket`` to 0; that entry is dropped when it comes up, or most are stale.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, float], int, Run]] = []
        self._limit = 64

    def push(self, run: Run, stamp: tuple[float, float]) -> None:
        if len(self._heap) >= self._limit:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapify(self._heap)
            self._limit = 2 * len(self._heap) + 64
        ticket = run.ticket = next(_serial)
        heappush(self._heap, (stamp, ticket, run))

    def first(self) -> Run:
        """The run of least stamp; ``LookupError`` if there is none."""
        heap = self._heap
        while heap[0][2].ticket != heap[0][1]:  # IndexError, a LookupError, when it is empty
            heappop(heap)
        return heap[0][2]

    def pop(self) -> Run:
        run = self.first()
        heappop(self._heap)
        run.ticket = 0
        return run

    def empty(self) -> bool:
        heap = self._heap
        while heap and heap[0][2].ticket != heap[0][1]:
            heappop(heap)
        return not heap


class Policy:
    """Base of all: offered runs in order, the oldest of the first queue first."""

    blockwise = False  # whether nothing depends on how many calls store or evict what one could

    def __init__(self, capacity: int) -> None:
        self.size = capacity
        self.now = 0  # grows with every request and every insertion
        self.orders = [Order(), Order()]  # the offered runs of each queue
        self.sizes = [0, 0]  # keys of each queue, where the policy counts them

    def serve(self, request: int) -> None:
        """Everything up to the next ``serve`` is done for this request."""
        self.now += 1

    def admit(self, run: Run, key: object) -> None:
        """A run has been stored; ``key`` is its first."""
        run.moment = self.now

    def touch(self, run: Run) -> None:
        """A request uses a run that is cached."""

    def refresh(self, run: Run, moment: int) -> None:
        """A request releases it, and last stored what follows it at ``moment``; 0: never."""

    def offer(self, run: Run) -> None:
        """The run may be evicted from now on."""
        self.orders[run.queue].push(run, (run.moment, 0.0))

    def choose(self) -> Run:
        return self.orders[0].first()

    def limit(self, run: Run) -> int:
        """How many keys of the chosen run may go before it must be chosen again."""
        return run.length

    def dropped(self, run: Run, count: int, key: object) -> None:
        """The chosen run lost its last ``count`` keys; ``key`` is the first of them."""


class FIFO(Policy):
    """What was stored first goes first, however often it is used."""

    blockwise = True


class LRU(Policy):
    """What was used longest ago goes first; of one request's blocks the last."""

    blockwise = True

    def touch(self, run: Run) -> None:
        run.moment = self.now

    def refresh(self, run: Run, moment: int) -> None:
        run.moment = max(run.moment, moment)


class LFU(Policy):
    """What was used least often goes first; among equals, longest ago."""

    blockwise = True

    def admit(self, run: Run, key: object) -> None:
        run.uses = 0
        self.touch(run)

    def touch(self, run: Run) -> None:
        run.uses += 1
        run.stamp = (run.uses, self.now)

    def offer(self, run: Run) -> None:
        self.orders[0].push(run, run.stamp)


class SIEVE(Policy):
    """A hand moves from old to new and spares what was used since it last came by.

    The hand passes a run as a whole.  The queue is two orders by age: what the hand has still to
    pass, and what is behind it.  So runs that others follow cost the hand no steps.  Zhang et
    al., "SIEVE is simpler than LRU" (NSDI 2024).
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._hand = 0

    def admit(self, run: Run, key: object) -> None:
        run.moment, run.uses = self.now, 0

    def touch(self, run: Run) -> None:
        run.uses = 1

    def offer(self, run: Run) -> None:
        self.orders[run.moment < self._hand].push(run, (run.moment, 0.0))

    def choose(self) -> Run:
        while True:
            if self.orders[0].empty():
                self._start_over()
            run = self.orders[0].first()
            self._hand = run.moment
            if not run.uses:
                return run
            self.orders[0].pop()
            run.uses = 0
            self.orders[1].push(run, (run.moment, 0.0))

    def dropped(self, run: Run, count: int, key: object) -> None:
        """Start over when the newest has gone: what comes next must not be evicted immediately."""
        if run.parent is None and self.orders[0].empty():
            self._start_over()

    def _start_over(self) -> None:
        self.orders.reverse()
        self._hand = 0


class Ghosts:
    """First keys of evicted pieces, oldest first, with how many keys each piece had.

    A chain that returns continues where its cached part ends, and there the last piece of it was
    cut off: so its first key shows that the piece is known.
    """

    def __init__(self) -> None:
        self.sizes: OrderedDict[object, int] = OrderedDict()
        self.size = 0

    def add(self, key: object, size: int) -> None:
        self.take(key)
        self.sizes[key] = size
        self.size += size

    def take(self, key: object) -> int:
        """Forget a piece and return its size; 0 if it is not known."""
        size = self.sizes.pop(key, 0)
        self.size -= size
        return size

    def shrink(self, size: int) -> None:
        while self.size > max(size, 0):
            self.size -= self.sizes.popitem(last=False)[1]


_SMALL, _MAIN = 0, 1
_SMALL_SHARE = 0.1
_MOST_USES = 3
_USES_TO_STAY = 2


class S3FIFO(Policy):
    """A small queue on probation, a main queue, and a memory of those that failed.

    Small queue a tenth of the capacity; what was used twice there moves to the main queue, what
    was not is remembered for as long as the main queue is large and enters that when it returns.
    Until the cache is full, what the small queue has no room for enters the main queue, as in
    libCacheSim's S3FIFO.  Yang et al., "FIFO queues are all you need for cache eviction" (SOSP
    2023).
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small_capacity = int(capacity * _SMALL_SHARE)
        self._main_capacity = capacity - self._small_capacity
        self._was_full = False
        self._ghosts = Ghosts()

    def admit(self, run: Run, key: object) -> None:
        fits = self._was_full or self.sizes[_SMALL] + run.length <= self._small_capacity
        run.queue = _MAIN if self._ghosts.take(key) or not fits else _SMALL
        self.now += 1  # runs that moved to make room for it came before it
        run.moment, run.uses = self.now, 0
        self.sizes[run.queue] += run.length

    def touch(self, run: Run) -> None:
        run.uses = min(run.uses + 1, _MOST_USES)

    def choose(self) -> Run:
        small, main = self.orders
        self._was_full = True
        while True:
            over = self.sizes[_MAIN] > self._main_capacity
            if (over and not main.empty()) or small.empty():
                run = main.first()
                if not run.uses:
                    return run
                run.uses -= 1
            else:
                run = small.first()
                if run.uses < _USES_TO_STAY:
                    return run
                small.pop()
                run.uses = 0
                run.queue = _MAIN
                self.sizes[_SMALL] -= run.length
                self.sizes[_MAIN] += run.length
            self.now += 1
            run.moment = self.now
            self.offer(run)

    def dropped(self, run: Run, count: int, key: object) -> None:
        self.sizes[run.queue] -= count
        if run.queue == _SMALL:
            self._ghosts.add(key, count)
            self._ghosts.shrink(self._main_capacity)


class Schedule(Protocol):
    """The chained keys of every request to come."""

    def __len__(self) -> int: ...
    def __getitem__(self, request: int, /) -> list[int]: ...


class Belady(Policy):
    """With the whole trace known, what is needed last goes first: the offline bound.

    Requests must be pinned in the order of the schedule, each until its blocks are stored.  A
    run's last block is never needed before its first: so a run loses its end as far as that is
    needed at one time, and is judged again.
    """

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(0)
        self._keys = schedule
        self._uses: list[list[int]] = []  # when each of their keys is used next
        next_use: dict[int, int] = {}
        for request in range(len(schedule) - 1, -1, -1):
            keys = schedule[request]
            self._uses.append([next_use.get(key, NEVER) for key in keys])
            for key in keys:
                next_use[key] = request
        self._uses.reverse()
        self._needed: dict[int, int] = {}

    def serve(self, request: int) -> None:
        super().serve(request)
        if request < len(self._keys):
            self._needed.update(zip(self._keys[request], self._uses[request], strict=True))

    def offer(self, run: Run) -> None:
        needed = self._needed.get(run.keys[run.length - 1], NEVER)
        self.orders[0].push(run, (-float(needed), 0.0))

    def limit(self, run: Run) -> int:
        """Blocks at its end that are next needed when the last one is."""
        first = run.length - 1
        needed = self._needed.get(run.keys[first], NEVER)
        while first and self._needed.get(run.keys[first - 1], NEVER) == needed:
            first -= 1
        return run.length - first

    def dropped(self, run: Run, count: int, key: object) -> None:
        if run.parent is not None:
            self.offer(run)


POLICIES = {
    "lru": Choice("the least recently used", "core.policies:LRU"),
    "fifo": Choice("the one stored first", "core.policies:FIFO"),
    "lfu": Choice("the one used least often", "core.policies:LFU"),
    "sieve": Choice("the next one not used since a hand passed it", "core.policies:SIEVE"),
    "s3fifo": Choice(
        "what a small queue saw used less than twice, then the main queue's oldest",
        "core.policies:S3FIFO",
    ),
}
"""What is evicted first; children always before their parents."""

OFFLINE = "belady"

OFFLINE_POLICIES = {
    OFFLINE: Choice("the one needed last, a bound that knows the trace", "core.policies:Belady")
}


def make_policy(name: str, capacity: int = 1 << 62, schedule: Schedule | None = None) -> Policy:
    """A policy of ``POLICIES``, or ``OFFLINE`` with its ``schedule``; raises ``ConfigError``."""
    if name == OFFLINE and schedule is None:
        raise ConfigError("the policy belady needs to know the whole trace beforehand.")
    kind = choose(POLICIES | OFFLINE_POLICIES, name, "an eviction policy").load()
    policy: Policy = kind(schedule if name == OFFLINE else capacity)
    return policy
