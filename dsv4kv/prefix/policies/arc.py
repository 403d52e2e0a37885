"""ARC: recency and frequency share the cache, and the evicted show which of them needs more."""

from collections.abc import Hashable

from dsv4kv.prefix.policies.contract import Ghosts, Order, Policy
from dsv4kv.prefix.tree import Run

_ONCE, _OFTEN = 0, 1


class ARC(Policy):
    """Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003).

    ``target`` is how many keys used once are to be kept; a miss on one that was evicted from
    either side moves it. The memory of both sides is as large as the cache.
    """

    remembers = True

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._size = self.capacity()
        self.target = 0.0
        self._orders = (Order(), Order())
        self._sizes = [0, 0]
        self._ghosts = (Ghosts(), Ghosts())
        self._wanted: Hashable = None

    def missed(self, key: Hashable) -> None:
        """Give more room to the side that the key was evicted from."""
        once, often = self._ghosts
        self._wanted = key
        if key in once:
            self.target = min(self.target + max(1, often.size / once.size), self._size)
        elif key in often:
            self.target = max(self.target - max(1, once.size / often.size), 0)

    def admit(self, run: Run, key: Hashable) -> None:
        """Enter as used once, or as used often if it is remembered."""
        known = [ghosts.take(key) for ghosts in self._ghosts]
        run.queue = _OFTEN if any(known) else _ONCE
        run.stamp = self.now
        self._sizes[run.queue] += run.length

    def touch(self, run: Run) -> None:
        """Enter the often used as the newest."""
        self._sizes[run.queue] -= run.length
        run.queue = _OFTEN
        self._sizes[_OFTEN] += run.length
        run.stamp = self.now

    def offer(self, run: Run) -> None:
        """Order by recency in its queue."""
        self._orders[run.queue].push(run, run.stamp)

    def choose(self) -> Run:
        """From the side that is above its target, as far as it may go."""
        once, often = self._orders
        size = self._sizes[_ONCE]
        returns = size == self.target and self._wanted in self._ghosts[_OFTEN]
        if once and (size > self.target or (returns and size) or not often):
            return once.first()
        return often.first()

    def dropped(self, run: Run, count: int, key: Hashable) -> None:
        """Remember on which side it was; both memories are bounded."""
        self._sizes[run.queue] -= count
        self._ghosts[run.queue].add(key, count)
        once, often = self._ghosts
        once.shrink(self._size - self._sizes[_ONCE])
        often.shrink(2 * self._size - sum(self._sizes) - once.size)
