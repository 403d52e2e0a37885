"""Which block ids of prompts came by before, known run by run."""

from bisect import bisect_left
from collections.abc import Sequence

from dsv4kv.workload.traces.runs import as_runs


class SeenIds:
    """Remembers chains of block ids.

    An id stands for its history, so it is always the same one that comes before it: wherever ids
    count up, every chain that has one of them has all before it in that run. A run is known by
    its first id and by how much of it was ever seen.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def add(self, ids: Sequence[int]) -> int:
        """Remember a chain; returns how many of its leading ids an earlier one had."""
        runs, seen = as_runs(ids), self._seen
        starts, counts = runs.starts, runs.counts

        def goes_beyond(place: int) -> bool:
            return seen.get(int(starts[place]), 0) < int(counts[place])

        first = bisect_left(range(len(starts)), True, key=goes_beyond)
        known = int(counts[:first].sum())
        if first < len(starts):
            known += seen.get(int(starts[first]), 0)
            seen.update(zip(starts[first:].tolist(), counts[first:].tolist(), strict=True))
        return known
