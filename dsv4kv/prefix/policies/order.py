"""An order of runs in which entries go stale instead of being searched for."""

from heapq import heapify, heappop, heappush
from itertools import count

from dsv4kv.prefix.run import Run, Score

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
