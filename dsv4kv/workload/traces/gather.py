"""Block ids of a whole trace as runs of consecutive ids, in flat arrays."""

from array import array
from collections.abc import Sequence

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints
from dsv4kv.workload.traces.runs import IdRuns, signed

_BATCH_RUNS = 2**22  # ids of formats without runs are joined once so many have come


class GatheredRuns:
    """Gathers ids as runs; neighbours that continue each other are joined in batches."""

    def __init__(self) -> None:
        self._whole: list[tuple[Ints, Ints, Ints]] = []
        self._request, self._start, self._count = array("q"), array("q"), array("q")

    def add(self, request: int, ids: Sequence[int]) -> None:
        """Add all ids of a request; requests come in order."""
        if isinstance(ids, IdRuns):
            starts, counts = array("q", ids.starts.tobytes()), array("q", ids.counts.tobytes())
        else:
            starts, counts = signed(ids), array("q", [1]) * len(ids)
        self._request.extend([request] * len(starts))
        self._start.extend(starts)
        self._count.extend(counts)
        if len(self._start) >= _BATCH_RUNS:
            self._flush()

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Request, first id and length of every maximal run, int64[runs] each."""
        self._flush()
        request, start, count = (
            np.concatenate(column) for column in zip(*self._whole, strict=True)
        )
        return request, start, count

    def _flush(self) -> None:
        columns = (self._request, self._start, self._count)
        request, start, count = (np.frombuffer(c, np.int64).copy() for c in columns)
        self._request, self._start, self._count = array("q"), array("q"), array("q")
        follows = (request[1:] == request[:-1]) & (start[1:] == start[:-1] + count[:-1])
        first = np.flatnonzero(np.concatenate([[True], ~follows])[: len(start)])
        joined = np.add.reduceat(count, first) if len(first) else count
        self._whole.append((request[first], start[first], joined))
