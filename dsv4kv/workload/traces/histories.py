"""Which block id follows which in a trace of any length, exactly, in the memory of a batch.

An id stands for a block and everything before it, so it has one parent: the id before it, or none
where prompts begin with it. Ids are told as runs of consecutive ids, in which every id but the
first has its parent beside it. So two runs of a trace either begin with the same id, behind the
same parent, or have no id in common: of each first id the longest run says all, and ids are
counted without a set of them.

Batches are sorted by first id; where there is more than one they wait in temporary files, and are
merged range by range.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import TraceError
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.gather import RunBuffer

RUN = np.dtype(
    [("start", "i8"), ("last", "i8"), ("parent", "i8"), ("root", "?"), ("request", "i8")]
)
"""First id, last id, the id before, whether there is none, and a request that has the run."""

Runs = NDArray[np.void]

_BATCH_RUNS = 2**20
_SAMPLE = 2**12  # every so many rows of a sorted batch one is looked at to find ranges


class Conflict(NamedTuple):
    """An id with two histories, and two requests that have it."""

    request: int
    earlier: int
    id: int


class Histories:
    """Reads the ids of requests, in order; a context, for its temporary files.

    Attributes:
        references: Ids of all requests together.
    """

    def __init__(self, batch_runs: int = _BATCH_RUNS) -> None:
        self.references = 0
        self._most = batch_runs
        self._buffer = RunBuffer()
        self._batches: list[Runs] = []
        self._conflicts: list[Conflict] = []
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, request: int, ids: Sequence[int]) -> None:
        """Add all ids of a request.

        Raises:
            TraceError: The temporary folder is full.
        """
        self.references += len(ids)
        self._buffer.add(request, ids)
        if len(self._buffer) >= self._most:
            self._batches.append(self._keep(self._once(_rows(*self._buffer.pop()))))

    def check(self, name: Callable[[int], str]) -> int:
        """Count the different ids; ``name`` says where a request is.

        Raises:
            TraceError: An id has two histories.
        """
        self._batches.append(self._once(_rows(*self._buffer.pop())))
        distinct, furthest = 0, np.zeros(0, RUN)
        for rows in self._ranges():
            runs = self._once(rows) if len(self._batches) > 1 else rows
            distinct += int((runs["last"] - runs["start"] + 1).sum())
            runs = np.concatenate([furthest, runs])
            furthest = self._find_inside(runs)
        if self._conflicts:
            raise contradiction(min(self._conflicts), name)
        return distinct

    def _once(self, rows: Runs) -> Runs:
        """The longest run of every first id, sorted; remembers one behind two parents."""
        rows = rows[rows["start"].argsort(kind="stable")]
        start = rows["start"]
        first = np.flatnonzero(np.append(True, start[1:] != start[:-1])[: len(rows)])
        group = np.repeat(first, np.diff(first, append=len(rows)))
        parent, root = rows["parent"], rows["root"]
        differs = np.flatnonzero((parent != parent[group]) | (root != root[group]))
        if len(differs):
            at = differs[rows["request"][differs].argmin()]
            self._remember(rows[at], rows[group[at]])
        if not len(rows):
            return rows
        longest = (
            rows["last"] == np.maximum.reduceat(rows["last"], first)[np.searchsorted(first, group)]
        )
        _, place = np.unique(group[longest], return_index=True)
        return rows[np.flatnonzero(longest)[place]]

    def _find_inside(self, runs: Runs) -> Runs:
        """Remember a run that begins inside another; the run that reaches furthest."""
        if not len(runs):
            return runs
        reach = np.maximum.accumulate(runs["last"])
        inside = np.flatnonzero(runs["start"][1:] <= reach[:-1]) + 1
        if len(inside):
            at = inside[runs["request"][inside].argmin()]
            around = int((runs["last"] == reach[at - 1])[:at].argmax())
            self._remember(runs[at], runs[around])
        furthest: Runs = runs[runs["last"] == reach[-1]][:1]
        return furthest

    def _remember(self, run: Any, other: Any) -> None:
        self._conflicts.append(
            Conflict(int(run["request"]), int(other["request"]), int(run["start"]))
        )

    def _keep(self, runs: Runs) -> Runs:
        """The same on disk: nothing is left of it, however this process ends."""
        try:
            file = self._files.enter_context(TemporaryFile())  # noqa: SIM115
            runs.tofile(file)
            kept: Runs = np.memmap(file, RUN, "r")
        except OSError as error:
            raise TraceError(
                f"a temporary file cannot be written ({error.strerror or error}): a long trace is "
                "sorted on disk; name a folder with room in TMPDIR."
            ) from None
        return kept

    def _ranges(self) -> Iterator[Runs]:
        """All rows, by rising ranges of first ids, batches in their order."""
        if len(self._batches) == 1:
            yield from self._batches
            return
        samples = np.concatenate([batch["start"][::_SAMPLE] for batch in self._batches])
        edges = np.unique(np.sort(samples)[:: max(1, self._most // _SAMPLE)])[1:]
        cuts = [
            [0, *batch["start"].searchsorted(edges).tolist(), len(batch)]
            for batch in self._batches
        ]
        for bounds in zip(*map(pairwise, cuts), strict=True):
            parts = zip(self._batches, bounds, strict=True)
            yield np.concatenate([batch[low:high] for batch, (low, high) in parts])


def contradiction(conflict: Conflict, name: Callable[[int], str]) -> TraceError:
    """The sentence about an id with two histories; ``name`` says where a request is."""
    there, here = sorted(conflict[:2])
    return TraceError(
        f"{name(here)}: block id {conflict.id} has another history than at {name(there)}: an id "
        "stands for a block and everything before it, so it always follows the same id."
    )


def check_histories_of(
    requests: Iterable[Request], name: Callable[[int], str]
) -> Iterator[Request]:
    """Pass requests on; where they end, refuse ids that contradict each other.

    Raises:
        TraceError: An id has two histories; ``name`` says where a request is.
    """
    with Histories() as histories:
        for number, request in enumerate(requests):
            histories.add(number, request.prefix_hashes)
            yield request
        histories.check(name)


def _rows(request: NDArray[np.int64], start: NDArray[np.int64], count: NDArray[np.int64]) -> Runs:
    """RUN[runs] of requests' maximal runs, in the order of the prompts."""
    rows = np.empty(len(start), RUN)
    rows["start"], rows["last"], rows["request"] = start, start + count - 1, request
    rows["root"] = np.append(True, request[1:] != request[:-1])[: len(start)]
    rows["parent"] = np.where(rows["root"], 0, np.roll(rows["last"], 1))
    return rows
