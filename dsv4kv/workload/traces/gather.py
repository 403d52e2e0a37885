"""Block ids of a whole trace as runs of consecutive ids, in flat arrays."""

from array import array
from collections.abc import Sequence

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints
from dsv4kv.workload.traces.runs import IdRuns, signed

_BATCH_RUNS = 2**22  # ids of formats without runs are joined once so many have come


class RunBuffer:
    """Ids of requests as they come."""

    def __init__(self) -> None:
        self._clear()

    def __len__(self) -> int:
        """Runs, not yet joined."""
        return len(self._start)

    def add(self, request: int, ids: Sequence[int]) -> None:
        """Add all ids of a request; requests come in order."""
        if type(ids) is IdRuns:  # isinstance asks Sequence's registry, for every request
            self._start.frombytes(ids.starts.tobytes())
            self._count.frombytes(ids.counts.tobytes())
            rows = len(ids.starts)
        else:
            self._start.extend(signed(ids))
            rows = len(ids)
            self._count.extend(_ONE * rows)
        self._request.extend(array("q", [request]) * rows)

    def extend(self, request: Ints, start: Ints, count: Ints) -> None:
        """Add runs of requests, int64[runs] each; in order."""
        self._request.frombytes(request.tobytes())
        self._start.frombytes(start.tobytes())
        self._count.frombytes(count.tobytes())

    def pop(self) -> tuple[Ints, Ints, Ints]:
        """Take out request, first id and length of every maximal run, int64[runs] each."""
        columns = (self._request, self._start, self._count)
        request, start, count = (np.frombuffer(column, np.int64) for column in columns)
        self._clear()
        follows = (request[1:] == request[:-1]) & (start[1:] == start[:-1] + count[:-1])
        first = np.flatnonzero(np.concatenate([[True], ~follows])[: len(start)])
        joined = np.add.reduceat(count, first) if len(first) else count
        return request[first], start[first], joined

    def _clear(self) -> None:
        self._request, self._start, self._count = array("q"), array("q"), array("q")


_ONE = array("q", [1])


class GatheredRuns:
    """Gathers ids as runs; neighbours that continue each other are joined in batches."""

    def __init__(self) -> None:
        self._whole: list[tuple[Ints, Ints, Ints]] = []
        self._buffer = RunBuffer()

    def add(self, request: int, ids: Sequence[int]) -> None:
        """Add all ids of a request; requests come in order."""
        self._buffer.add(request, ids)
        if len(self._buffer) >= _BATCH_RUNS:
            self._whole.append(self._buffer.pop())

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Request, first id and length of every maximal run, int64[runs] each."""
        self._whole.append(self._buffer.pop())
        request, start, count = (
            np.concatenate(column) for column in zip(*self._whole, strict=True)
        )
        return request, start, count
