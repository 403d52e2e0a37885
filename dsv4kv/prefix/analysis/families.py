"""Families of prompts: those that share blocks beyond what very many prompts begin with.

A sample of a trace must hold whole families: a block without those before it could never be hit,
and reuse between prompts would be cut. A beginning that very many prompts share (a system prompt)
would make one family of them all; it is taken as common, and families start behind it.
"""

from dataclasses import dataclass

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints, PathTable

_COMMON = 0.05
"""Share of all prompts that a beginning must have to be common: used as often as that it is cached
at all times. One long conversation is not, however heavy it is."""


@dataclass(frozen=True)
class Families:
    """The families of a trace.

    Attributes:
        of_request: int64[requests]: number of the request's family, from 0.
        count: Families.
        common_ids: Ids that lie before families, all such beginnings together.
        heaviest_share: Share of all block references that the heaviest family makes.
    """

    of_request: Ints
    count: int
    common_ids: int
    heaviest_share: float


def find_families(table: PathTable, most_share: float) -> Families:
    """Part prompts by their first id, and heavy families where they branch.

    Args:
        table: The trace.
        most_share: A family with more than this share of all block references is parted further,
            if its beginning is common.
    """
    ids = _Ids(table)
    of_request = np.zeros(len(table), np.int64)
    common = count = 0
    pending = [(np.arange(len(table)), 0)]
    while pending:
        members, depth = pending.pop()
        kin = ids.group(members, depth)
        of_request[members] = count + kin
        count += int(kin.max()) + 1
        heavy = np.bincount(kin, table.counts[members]) > most_share * table.references
        common_to_many = np.bincount(kin) >= _COMMON * len(table)
        for group in np.flatnonzero(heavy & common_to_many).tolist():
            among = members[kin == group]
            shared = ids.shared(among, depth)
            if (table.counts[among] > shared).any():  # else they are equal and cannot be parted
                common += shared - depth
                pending.append((among, shared))
    numbers, of_request = np.unique(of_request, return_inverse=True)
    heaviest = np.bincount(of_request, table.counts).max() / table.references
    return Families(of_request, len(numbers), common, float(heaviest))


class _Ids:
    """Ids of many prompts at one depth: all runs lie end to end, one prompt after the other."""

    def __init__(self, table: PathTable) -> None:
        self._counts, self._starts = table.counts, table.starts
        self._before = table.counts.cumsum() - table.counts
        ends = np.repeat(self._before, np.diff(table.offsets)) + table.ends
        self._begins, self._ends = np.concatenate([[0], ends[:-1]]), ends

    def at(self, requests: Ints, depth: int) -> Ints:
        """int64[requests]: the id of block ``depth`` of prompts that have it."""
        place = self._before[requests] + depth
        run = self._ends.searchsorted(place, side="right")
        ids: Ints = self._starts[run] + place - self._begins[run]
        return ids

    def group(self, requests: Ints, depth: int) -> Ints:
        """int64[requests]: equal numbers for equal ids; prompts that end before are alone."""
        longer = self._counts[requests] > depth
        groups = np.zeros(len(requests), np.int64)
        ids, groups[longer] = np.unique(self.at(requests[longer], depth), return_inverse=True)
        groups[~longer] = len(ids) + np.arange(int((~longer).sum()))
        return groups

    def shared(self, requests: Ints, depth: int) -> int:
        """Ids that all these prompts begin with, which are more than ``depth``."""
        low, high = depth + 1, int(self._counts[requests].min())
        while low < high:  # an id stands for all before it, too
            middle = (low + high + 1) // 2
            ids = self.at(requests, middle - 1)
            low, high = (middle, high) if (ids == ids[0]).all() else (low, middle - 1)
        return low
