"""Policies that are one number for every run."""

from collections.abc import Hashable

from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.tree import Run


class FIFO(Policy):
    """What was stored first goes first, however often it is used."""

    blockwise = True


class LRU(Policy):
    """What was used longest ago goes first; of one request's blocks the last."""

    blockwise = True

    def touch(self, run: Run) -> None:
        """Make it the newest."""
        run.stamp = self.now

    def refresh(self, run: Run, moment: int) -> None:
        """As new as that, or newer by the use of others."""
        run.stamp = max(run.moment, moment)


class LFU(Policy):
    """What was used least often goes first; among equals, longest ago."""

    blockwise = True

    def admit(self, run: Run, key: Hashable) -> None:
        """Count the request that stores it."""
        run.uses = 0
        self.touch(run)

    def touch(self, run: Run) -> None:
        """Count one more."""
        run.uses += 1
        run.stamp = (run.uses, self.now)


class AgedLFU(LFU):
    """LFU with dynamic ageing: a use counts from the score at which runs are going now.

    So a run of former fame falls behind as the scores of the evicted rise. Arlitt et al.,
    "Evaluating content management techniques for Web proxy caches" (2000).
    """

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self.age = 0.0

    def touch(self, run: Run) -> None:
        """Count one more, on top of the age."""
        run.uses += 1
        run.stamp = (self.age + self.weigh(run), self.now)

    def weigh(self, run: Run) -> float:
        """What all its uses are worth."""
        return run.uses

    def dropped(self, run: Run, count: int, key: Hashable) -> None:
        """Age: what is used from now on scores above what has just gone."""
        assert isinstance(run.stamp, tuple)
        self.age = max(self.age, run.stamp[0])


class GDSF(AgedLFU):
    """Greedy dual, size, frequency: a use is worth the more, the shorter the run.

    Many short prompts that share nothing are kept at the cost of one long one. Cherkasova,
    "Improving WWW proxies performance with greedy-dual-size-frequency caching policy" (1998).
    """

    blockwise = False

    def weigh(self, run: Run) -> float:
        """Uses for each of its keys."""
        return run.uses / run.length
