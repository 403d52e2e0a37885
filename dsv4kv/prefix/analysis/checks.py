"""What a trace must not say: an id with two histories."""

from dataclasses import dataclass

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints, PathTable


@dataclass(frozen=True)
class Contradiction:
    """A block id that stands behind two different blocks.

    Attributes:
        request: The request that contradicts.
        block: Which of its blocks, from 0.
        id: The block's id.
        earlier: A request that has the id with another history; it may also come later.
    """

    request: int
    block: int
    id: int
    earlier: int


def find_contradiction(table: PathTable) -> Contradiction | None:
    """Find an id with two parents; None in a trace whose ids form a tree.

    The parent of an id inside a run is the id before it; only the first of every run has another.
    """
    request, before = _run_places(table)
    last = table.starts + table.ends - before - 1
    parent = np.concatenate([[0], last[:-1]])
    rooted = before == 0
    return _two_parents(table, request, before, parent, rooted) or _inside_a_run(
        table, request, before
    )


def _run_places(table: PathTable) -> tuple[Ints, Ints]:
    """The request of every run, and the blocks before it."""
    request = np.repeat(np.arange(len(table)), np.diff(table.offsets))
    before = np.concatenate([[0], table.ends[:-1]])
    before[table.offsets[request] == np.arange(len(request))] = 0
    return request, before


def _two_parents(
    table: PathTable, request: Ints, before: Ints, parent: Ints, rooted: np.ndarray
) -> Contradiction | None:
    """Runs that begin with the same id after different ones."""
    if not len(table.starts):
        return None
    order = np.argsort(table.starts, kind="stable")
    head = table.starts[order]
    first = np.flatnonzero(np.concatenate([[True], head[1:] != head[:-1]]))
    group = np.repeat(order[first], np.diff(first, append=len(head)))
    differs = (parent[order] != parent[group]) & ~(rooted[order] & rooted[group])
    differs |= rooted[order] != rooted[group]
    if not differs.any():
        return None
    at = int(order[differs].min())
    other = int(group[order == at][0])
    return Contradiction(
        int(request[at]), int(before[at]), int(table.starts[at]), int(request[other])
    )


def _inside_a_run(table: PathTable, request: Ints, before: Ints) -> Contradiction | None:
    """A run that begins inside another: there its first id follows the id before it."""
    counts = table.ends - before
    order = np.argsort(table.starts, kind="stable")
    starts, ends = table.starts[order], (table.starts + counts)[order]
    furthest = np.maximum.accumulate(ends)
    below = np.searchsorted(starts, table.starts, side="left") - 1
    inside = np.flatnonzero((below >= 0) & (furthest[below] > table.starts))
    if not len(inside):
        return None
    at = int(inside.min())
    around = (table.starts < table.starts[at]) & (table.starts + counts > table.starts[at])
    other = int(np.flatnonzero(around)[0])
    return Contradiction(
        int(request[at]), int(before[at]), int(table.starts[at]), int(request[other])
    )
