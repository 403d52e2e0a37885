"""Belady: with the whole trace known, what is needed last goes first. The offline bound."""

from collections.abc import Hashable, Sequence

import numpy as np

from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.tree import Ids, Run

NEVER = 2**62


class Belady(Policy):
    """Leaf-constrained Belady over chained ids.

    Requests must be pinned in the order of the schedule, each until its blocks are stored. A
    run's last block is never needed before its first: so a run loses its end as far as that is
    needed at one time, and is judged again.
    """

    def __init__(self, schedule: Sequence[Ids]) -> None:
        """``schedule`` is the chained ids of every request, int64, in order."""
        super().__init__()
        ends = np.cumsum([len(ids) for ids in schedule], dtype=np.int64)
        self._starts = np.concatenate([[0], ends])
        every = np.concatenate(schedule) if len(schedule) else np.zeros(0, dtype=np.int64)
        self._ids, self._which = np.unique(every, return_inverse=True)
        requests = np.repeat(np.arange(len(schedule)), np.diff(self._starts))
        self._next_use = _next_uses(self._which, requests)
        self._needed = np.full(len(self._ids), NEVER, dtype=np.int64)

    def serve(self, request: int) -> None:
        """Know when each block of the request is needed next; beyond the schedule: never."""
        super().serve(request)
        if request + 1 >= len(self._starts):
            return
        part = slice(*self._starts[request : request + 2].tolist())
        self._needed[self._which[part]] = self._next_use[part]

    def offer(self, run: Run) -> None:
        """Order by the next use of the last block, the farthest first."""
        self.order.push(run, -float(self._needed_of(run, run.length - 1)[0]))

    def limit(self, run: Run) -> int:
        """Blocks at its end that are next needed when the last one is."""
        needed = self._needed_of(run, 0)
        sooner = np.flatnonzero(needed != needed[-1])
        return run.length - (int(sooner[-1]) + 1 if len(sooner) else 0)

    def dropped(self, run: Run, count: int, key: Hashable) -> None:
        """Judge what is left of the run again."""
        if run.parent is not None:
            self.offer(run)

    def _needed_of(self, run: Run, first: int) -> Ids:
        """Next use of the run's blocks from ``first`` on: int64, the number of a request."""
        ids = np.frombuffer(run.keys, np.int64, run.length - first, 8 * first)
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        needed: Ids = np.where(self._ids[at] == ids, self._needed[at], NEVER)
        return needed


def _next_uses(which: Ids, requests: Ids) -> Ids:
    """For every reference the next request that makes the same; int64, ``NEVER`` for the last."""
    order = np.argsort(which, kind="stable")
    again = which[order[1:]] == which[order[:-1]]
    found = np.full(len(which), NEVER, dtype=np.int64)
    found[order[:-1][again]] = requests[order[1:][again]]
    return found
