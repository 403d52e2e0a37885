"""Eviction policies: which run of cached keys goes first.

The cache keeps eviction prefix-closed: only a run that nothing follows and no request holds is
*offered*, and a policy chooses among those.  A run that stops being so (``ticket`` 0) is not
chosen until it is offered again.  Sizes are in keys.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from dsv4kv.choices import Choice, choose
from dsv4kv.errors import ConfigError

NEVER = 2**62
_serial = count(1)


class Run:
    """Keys of one tree edge that were cached together and have been used together ever since."""

    __slots__ = (
        "children", "keys", "length", "moment", "parent", "pins", "rows", "start", "ticket",
        "uses", "values",
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


class Policy:
    """Base of all: offered runs in order, the oldest first."""

    def __init__(self) -> None:
        self.now = 0  # grows with every request
        self.order = Order()  # the offered runs

    def serve(self, request: int) -> None:
        """Everything up to the next ``serve`` is done for this request."""
        self.now += 1

    def admit(self, run: Run) -> None:
        """A run has been stored."""
        run.moment = self.now

    def touch(self, run: Run) -> None:
        """A request uses a run that is cached."""

    def refresh(self, run: Run, moment: int) -> None:
        """A request releases it, and last stored what follows it at ``moment``; 0: never."""

    def offer(self, run: Run) -> None:
        """The run may be evicted from now on."""
        self.order.push(run, (run.moment, 0.0))

    def choose(self) -> Run:
        return self.order.first()

    def limit(self, run: Run) -> int:
        """How many keys of the chosen run may go before it must be chosen again."""
        return run.length

    def dropped(self, run: Run) -> None:
        """The chosen run lost its last keys, or all."""


class FIFO(Policy):
    """What was stored first goes first, however often it is used."""


class LRU(Policy):
    """What was used longest ago goes first; of one request's blocks the last."""

    def touch(self, run: Run) -> None:
        run.moment = self.now

    def refresh(self, run: Run, moment: int) -> None:
        run.moment = max(run.moment, moment)


class LFU(Policy):
    """What was used least often goes first; among equals, longest ago."""

    def admit(self, run: Run) -> None:
        run.uses = 0
        self.touch(run)

    def touch(self, run: Run) -> None:
        run.uses += 1
        run.moment = self.now

    def offer(self, run: Run) -> None:
        self.order.push(run, (run.uses, run.moment))


class Belady(Policy):
    """With the whole trace known, what is needed last goes first: the offline bound.

    ``schedule`` has the chained keys of every request, which must be pinned in its order, each
    until its blocks are stored.  A run's last block is never needed before its first: so a run
    loses its end as far as that is needed at one time, and is judged again.
    """

    def __init__(self, schedule: Sequence[list[int]]) -> None:
        super().__init__()
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
        self.order.push(run, (-float(needed), 0.0))

    def limit(self, run: Run) -> int:
        """Blocks at its end that are next needed when the last one is."""
        first = run.length - 1
        needed = self._needed.get(run.keys[first], NEVER)
        while first and self._needed.get(run.keys[first - 1], NEVER) == needed:
            first -= 1
        return run.length - first

    def dropped(self, run: Run) -> None:
        if run.parent is not None:
            self.offer(run)


POLICIES = {
    "lru": Choice("the least recently used", "core.policies:LRU"),
    "fifo": Choice("the one stored first", "core.policies:FIFO"),
    "lfu": Choice("the one used least often", "core.policies:LFU"),
}
"""What is evicted first; children always before their parents."""

OFFLINE = "belady"

OFFLINE_POLICIES = {
    OFFLINE: Choice("the one needed last, a bound that knows the trace", "core.policies:Belady")
}


def make_policy(name: str, schedule: Sequence[list[int]] | None = None) -> Policy:
    """A policy of ``POLICIES``, or ``OFFLINE`` with its ``schedule``; raises ``ConfigError``."""
    kind = choose(POLICIES | OFFLINE_POLICIES, name, "an eviction policy").load()
    if name == OFFLINE and schedule is None:
        raise ConfigError("the policy belady needs to know the whole trace beforehand.")
    policy: Policy = kind(schedule) if name == OFFLINE else kind()
    return policy
