"""How much of a trace's ids repeats, counted on runs: nothing here is as long as the prompts."""

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints


def count_repeats(request: Ints, start: Ints, count: Ints) -> tuple[int, int]:
    """Count different ids, and those that requests begin with and an earlier one had.

    Ids need not tell their history: they are compared one by one, as sets of numbers.

    Args:
        request: int64[runs]: whose run it is, in rising order.
        start: int64[runs]: its first id.
        count: int64[runs]: its ids, consecutive.

    Returns:
        Different ids; and leading ids of all requests, up to each one's first that is new.
    """
    if not len(start):
        return 0, 0
    edges = np.unique(np.concatenate([start, start + count]))  # between two, ids go together
    low, high = edges.searchsorted(start), edges.searchsorted(start + count)
    owner = _first_owner(request, low, high, len(edges))
    distinct = int(np.diff(edges)[owner[:-1] <= request[-1]].sum())
    fresh = np.sort(owner * len(edges) + np.arange(len(edges)))
    place = fresh.searchsorted(request * len(edges) + low)
    new = np.append(fresh, np.iinfo(np.int64).max)[place] - request * len(edges)
    found = np.where(new < high, edges[np.minimum(new, len(edges) - 1)] - start, count)
    whole = np.concatenate([[0], np.cumsum(found == count)])
    first = request.searchsorted(request)
    leading = whole[:-1] - whole[first] == np.arange(len(request)) - first
    return distinct, int(found[leading].sum())


def _first_owner(request: Ints, low: Ints, high: Ints, places: int) -> Ints:
    """int64[places]: the first request with a run over ``low`` to ``high``; too many where none.

    Every run is told by two overlapping spans of a power of two, and those are halved in turn.
    """
    level = np.frexp(high - low)[1] - 1
    owner = np.full(places, request[-1] + 1, np.int64)
    for power in range(int(level.max()), -1, -1):
        size = 1 << power
        mine = level == power
        np.minimum.at(owner, low[mine], request[mine])
        np.minimum.at(owner, high[mine] - size, request[mine])
        if power:
            half = size // 2
            np.minimum(owner[half:], owner[:-half].copy(), out=owner[half:])
    return owner
