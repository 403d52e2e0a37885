"""SIEVE: a hand moves from old to new and spares what was used since it last came by."""

from collections.abc import Hashable

from dsv4kv.prefix.policies.contract import Order, Policy
from dsv4kv.prefix.tree import Run


class SIEVE(Policy):
    """Zhang et al., "SIEVE is simpler than LRU" (NSDI 2024), over the runs that may go.

    The hand passes a run as a whole. The queue is two orders by age: what the hand has still to
    pass, and what is behind it. So runs that others follow cost the hand no steps.
    """

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._behind = Order()
        self._hand: float = 0

    def admit(self, run: Run, key: Hashable) -> None:
        """Enter it as the newest, unused."""
        run.stamp, run.uses = self.now, 0

    def touch(self, run: Run) -> None:
        """Mark it as used; its place stays."""
        run.uses = 1

    def offer(self, run: Run) -> None:
        """Before or behind the hand, by its age."""
        (self.order if run.moment >= self._hand else self._behind).push(run, run.stamp)

    def choose(self) -> Run:
        """Move the hand to the first run that was not used."""
        while True:
            if not self.order:
                self._start_over()
            run = self.order.first()
            self._hand = run.moment
            if not run.uses:
                return run
            self.order.pop()
            run.uses = 0
            self._behind.push(run, run.stamp)

    def dropped(self, run: Run, count: int, key: Hashable) -> None:
        """Start over when the newest has gone: what comes next is not to go at once."""
        if run.parent is None and not self.order:
            self._start_over()

    def _start_over(self) -> None:
        self.order, self._behind, self._hand = self._behind, self.order, 0
