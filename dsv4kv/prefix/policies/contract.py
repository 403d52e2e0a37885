"""What an eviction policy is asked.

The index keeps eviction prefix-closed: only a run that nothing follows and nobody holds is
*offered*, and a policy chooses among those. A run that stops being so (``ticket`` 0) is not to be
chosen until it is offered again. Sizes are in keys.
"""

from collections import OrderedDict
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.tree import Run, Score

_serial = count(1)


class Order:
    """A heap of offered runs, least score first; O(log n) amortised.

    A run's ``ticket`` names its one valid entry. Whoever uses the run sets the ticket to 0, and
    the entry is dropped when it comes up, or when stale entries are the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Score, int, Run]] = []
        self._limit = 64

    def push(self, run: Run, score: Score) -> None:
        """Enter a run, or move it."""
        if len(self._heap) >= self._limit:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapify(self._heap)
            self._limit = 2 * len(self._heap) + 64
        ticket = run.ticket = next(_serial)
        heappush(self._heap, (score, ticket, run))

    def first(self) -> Run:
        """Return the run of least score; ``LookupError`` if there is none."""
        heap = self._heap
        while heap[0][2].ticket != heap[0][1]:  # IndexError, a LookupError, when it is empty
            heappop(heap)
        return heap[0][2]

    def pop(self) -> Run:
        """Take the run of least score out."""
        run = self.first()
        heappop(self._heap)
        run.ticket = 0
        return run

    def __bool__(self) -> bool:
        """Whether a run is offered."""
        try:
            self.first()
        except LookupError:
            return False
        return True


class Policy:
    """Base of all: one order of offered runs, least score first, and nothing else happens.

    Attributes:
        remembers: Whether it knows evicted keys again; ``admit``, ``missed`` and ``dropped``
            then give the identity of a key together with its history.
        blockwise: Whether it judges every key as if it were a run of its own, so that nothing
            depends on how many calls store or evict what one could.
        now: Grows with every request and every insertion.
    """

    remembers = False
    blockwise = False

    def __init__(self, capacity: int | None = None) -> None:
        """``capacity`` of the cache in keys; some policies need it."""
        self._capacity = capacity
        self.now = 0
        self.order = Order()

    def capacity(self) -> int:
        """Keys the cache holds; ``ConfigError`` if it was not given."""
        if self._capacity is None:
            name = type(self).__name__.lower()
            raise ConfigError(f"the policy {name} needs the capacity of the cache: set one.")
        return self._capacity

    def serve(self, request: int) -> None:
        """Everything up to the next ``serve`` is done for this request."""
        self.now += 1

    def missed(self, key: Hashable) -> None:
        """The request needs a key that is not cached; called before room is made for it."""

    def admit(self, run: Run, key: Hashable) -> None:
        """A run has been stored; ``key`` is its first."""
        run.stamp = self.now

    def touch(self, run: Run) -> None:
        """A request uses a run that is cached."""

    def refresh(self, run: Run, moment: int) -> None:
        """A request lets go of it, and has last stored what follows it at ``moment``; 0: never."""

    def offer(self, run: Run) -> None:
        """The run may be evicted from now on."""
        self.order.push(run, run.stamp)

    def choose(self) -> Run:
        """Return the offered run that loses keys first; ``LookupError`` if there is none."""
        return self.order.first()

    def limit(self, run: Run) -> int:
        """How many keys of the chosen run may go before it must be chosen again."""
        return run.length

    def dropped(self, run: Run, count: int, key: Hashable) -> None:
        """The chosen run lost its last ``count`` keys, of which ``key`` is the first."""


class Ghosts:
    """First keys of evicted pieces, oldest first, with how many keys each piece had.

    A chain that returns goes on where the cached part of it ends, and that is where the last
    piece of it was cut off: so its first key shows that the piece is known.
    """

    def __init__(self) -> None:
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()
        self.size = 0

    def __contains__(self, key: Hashable) -> bool:
        """Whether a piece that began with the key is remembered."""
        return key in self._sizes

    def add(self, key: Hashable, size: int) -> None:
        """Remember a piece as the newest."""
        self.take(key)
        self._sizes[key] = size
        self.size += size

    def take(self, key: Hashable) -> int:
        """Forget a piece and return its size; 0 if it is not known."""
        size = self._sizes.pop(key, 0)
        self.size -= size
        return size

    def shrink(self, size: int) -> None:
        """Forget the oldest pieces until at most ``size`` keys are left."""
        while self.size > max(size, 0):
            self.size -= self._sizes.popitem(last=False)[1]
