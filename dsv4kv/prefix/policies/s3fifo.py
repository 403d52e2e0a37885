"""S3-FIFO: a small queue on probation, a main queue, and a memory of those that failed."""

from collections.abc import Hashable

from dsv4kv.prefix.policies.contract import Ghosts, Order, Policy
from dsv4kv.prefix.tree import Run

_SMALL, _MAIN = 0, 1
_SMALL_SHARE = 0.1
_MOST_USES = 3
_USES_TO_STAY = 2


class S3FIFO(Policy):
    """Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023).

    Small queue a tenth of the capacity; what was used twice there moves to the main queue, what
    was not is remembered for as long as the main queue is large and enters that when it returns.
    Until the cache is full, what the small queue has no room for enters the main queue, as in
    libCacheSim's S3FIFO.
    """

    remembers = True

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._small_capacity = int(self.capacity() * _SMALL_SHARE)
        self._main_capacity = self.capacity() - self._small_capacity
        self._was_full = False
        self._orders = (Order(), Order())
        self._sizes = [0, 0]
        self._ghosts = Ghosts()

    def admit(self, run: Run, key: Hashable) -> None:
        """Enter the small queue, or the main one if it is remembered."""
        fits = self._was_full or self._sizes[_SMALL] + run.length <= self._small_capacity
        run.queue = _MAIN if self._ghosts.take(key) or not fits else _SMALL
        self.now += 1  # runs that moved to make room for it came before it
        run.stamp, run.uses = self.now, 0
        self._sizes[run.queue] += run.length

    def touch(self, run: Run) -> None:
        """Count up to three uses."""
        run.uses = min(run.uses + 1, _MOST_USES)

    def offer(self, run: Run) -> None:
        """Order by entry into its queue."""
        self._orders[run.queue].push(run, run.stamp)

    def choose(self) -> Run:
        """From the main queue while it is too large, else from the small one."""
        small, main = self._orders
        self._was_full = True
        while True:
            over = self._sizes[_MAIN] > self._main_capacity
            if not main and not small:
                raise LookupError
            if (over and main) or not small:
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
                self._sizes[_SMALL] -= run.length
                self._sizes[_MAIN] += run.length
            self.now += 1
            run.stamp = self.now
            self.offer(run)

    def dropped(self, run: Run, count: int, key: Hashable) -> None:
        """Remember what failed in the small queue."""
        self._sizes[run.queue] -= count
        if run.queue == _SMALL:
            self._ghosts.add(key, count)
            self._ghosts.shrink(self._main_capacity)
