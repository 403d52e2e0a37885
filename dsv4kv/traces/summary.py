"""What a trace is like: how much it asks for, how much of it repeats, and whether ids agree.

Which block id follows which is known exactly, whatever the length, in the memory of a batch.

An id identifies a block and everything before it, so it has one parent: the id before it, or none
where prompts begin with it. Ids are given as runs of consecutive ids, in which every id but the
first has its parent next to it. So two runs of a trace either begin with the same id, after the
same parent, or have no id in common: of each first id the longest run says all, and ids are
counted without a set of them.

Batches are sorted by first id; where there is more than one they wait in a temporary file, and are
merged range by range.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from math import inf
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import TraceError
from dsv4kv.prefix.paths import Ints
from dsv4kv.traces.request import Batch, Request, RunBuffer, batches_of

RUN = np.dtype(
    [("start", "i8"), ("last", "i8"), ("parent", "i8"), ("root", "?"), ("request", "i8")]
)
"""First id, last id, the id before, whether there is none, and a request that has the run."""

Runs = NDArray[np.void]

_BATCH_RUNS = 2**18
_SAMPLE = 2**10  # rows of a batch that are read at once; of so many one is looked at for ranges


class _Conflict(NamedTuple):
    """An id with two histories, and two requests that have it."""

    request: int
    earlier: int
    id: int


class Histories:
    """Reads the ids of requests, in order; a context, for its temporary file.

    Attributes:
        references: Ids of all requests together.
    """

    def __init__(self, batch_runs: int = _BATCH_RUNS) -> None:
        self.references = 0
        self._most = batch_runs
        self._buffer = RunBuffer()
        self._batches: list[_Sorted] = []
        self._conflicts: list[_Conflict] = []
        self._files = ExitStack()
        self._file: FileIO | None = None

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
        self._keep_if_full()

    def add_runs(self, request: Ints, start: Ints, count: Ints) -> None:
        """Add all ids of the next requests: int64[runs] each, in order.

        Raises:
            TraceError: The temporary folder is full.
        """
        self.references += int(count.sum())
        self._buffer.extend(request, start, count)
        self._keep_if_full()

    def check(self, name: Callable[[int], str]) -> int:
        """Count the different ids; ``name`` says where a request is.

        Raises:
            TraceError: An id has two histories.
        """
        distinct, furthest = 0, np.zeros(0, RUN)
        for runs in self._ranges(self._pop()):
            distinct += int((runs["last"] - runs["start"] + 1).sum())
            furthest = self._find_inside(np.concatenate([furthest, runs]))
        if self._conflicts:
            conflict = min(self._conflicts)
            there, here = sorted(conflict[:2])
            raise TraceError(
                f"{name(here)}: block id {conflict.id} has another history than at "
                f"{name(there)}: an id identifies a block and everything before it, so it always "
                "follows the same id."
            )
        return distinct

    def _pop(self) -> Runs:
        return self._once(_rows(*self._buffer.pop()))

    def _keep_if_full(self) -> None:
        """Move a full batch to disk: nothing is left of it, however this process ends."""
        if len(self._buffer) < self._most:
            return
        runs = self._pop()
        try:
            if self._file is None:
                self._file = self._files.enter_context(TemporaryFile(buffering=0))  # noqa: SIM115
            self._batches.append(_Sorted(self._file, runs))
        except OSError as error:
            raise TraceError(
                f"a temporary file cannot be written ({error.strerror or error}): a long trace is "
                "sorted on disk; name a folder with room in TMPDIR."
            ) from None

    def _once(self, rows: Runs) -> Runs:
        """The longest run of every first id, sorted; remembers one after two parents."""
        rows = rows[rows["start"].argsort(kind="stable")]
        start = rows["start"]
        begins = _changes(start)
        first, number = np.flatnonzero(begins), begins.cumsum() - 1
        group = first[number]
        parent, root = rows["parent"], rows["root"]
        differs = np.flatnonzero((parent != parent[group]) | (root != root[group]))
        if len(differs):
            at = differs[rows["request"][differs].argmin()]
            self._remember(rows[at], rows[group[at]])
        if not len(rows):
            return rows
        last = rows["last"]
        longest = np.flatnonzero(last == np.maximum.reduceat(last, first)[number])
        return rows[longest[_changes(number[longest])]]

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
            _Conflict(int(run["request"]), int(other["request"]), int(run["start"]))
        )

    def _ranges(self, rest: Runs) -> Iterator[Runs]:
        """All rows, by rising ranges of first ids; ``rest`` is the batch that came last."""
        if not self._batches:
            yield rest
            return
        kept = [batch.samples for batch in self._batches]
        samples = np.sort(np.concatenate([*kept, rest["start"][::_SAMPLE]]))
        for edge in [*np.unique(samples[:: max(1, self._most // _SAMPLE)])[1:].tolist(), None]:
            cut = len(rest) if edge is None else rest["start"].searchsorted(edge)
            parts = [batch.below(edge) for batch in self._batches]
            yield self._once(np.concatenate([*parts, rest[:cut]]))
            rest = rest[cut:]


class _Sorted:
    """Rows of a sorted batch on disk, read once; memory is that of a few.

    Attributes:
        samples: Every so many rows' first id.
    """

    def __init__(self, file: FileIO, rows: Runs) -> None:
        """Write the rows after what the file has."""
        self.samples: Ints = rows["start"][::_SAMPLE].copy()
        self._file = file
        self._place, self._left = file.tell(), len(rows)
        self._held = rows[:0].copy()
        rows.tofile(file)

    def below(self, edge: int | None) -> Runs:
        """The next rows, whose first ids are below ``edge``; all that are left without one."""
        parts: list[Runs] = []
        while len(self._held) or self._read():
            cut = len(self._held) if edge is None else self._held["start"].searchsorted(edge)
            parts.append(self._held[:cut])
            self._held = self._held[cut:]
            if len(self._held):
                break
        return np.concatenate(parts) if parts else self._held

    def _read(self) -> bool:
        self._file.seek(self._place)
        self._held = np.fromfile(self._file, RUN, min(_SAMPLE, self._left))
        self._place += self._held.nbytes
        self._left -= len(self._held)
        return len(self._held) > 0


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


def _rows(request: Ints, start: Ints, count: Ints) -> Runs:
    rows = np.empty(len(start), RUN)
    rows["start"], rows["last"], rows["request"] = start, start + count - 1, request
    rows["root"] = _changes(request)
    rows["parent"] = np.where(rows["root"], 0, np.roll(rows["last"], 1))
    return rows


def _changes(values: Ints) -> NDArray[np.bool_]:
    """Where a value is another than the one before it, or the first."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Lengths in tokens; percentiles are lengths that occur (nearest rank)."""

    total: int
    p50: int
    p90: int
    p99: int
    max: int


def _summarize_lengths(times: Counter[int]) -> LengthSummary:
    """Summarise at least one length, by how often each occurs."""
    lengths, counts = (np.array(column) for column in zip(*sorted(times.items()), strict=True))
    up_to = counts.cumsum()
    ranks = [-(-percent * int(up_to[-1]) // 100) for percent in (50, 90, 99)]
    p50, p90, p99 = lengths[up_to.searchsorted(ranks)].tolist()
    return LengthSummary(int((lengths * counts).sum()), p50, p90, p99, int(lengths[-1]))


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A whole trace in a few numbers.

    Attributes:
        requests: Number of requests.
        duration_s: From the first arrival to the last, in seconds.
        input_tokens: Prompt lengths.
        output_tokens: Generated lengths.
        hash_block_tokens: Tokens one prefix hash stands for; 0 if the trace has none.
        block_references: Prefix hashes, all requests together.
        distinct_blocks: Different prefix hashes.
        hit_blocks: References a cache that forgets nothing would find; a request's hits end at
            its first miss.
    """

    requests: int
    duration_s: float
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    hash_block_tokens: int
    block_references: int
    distinct_blocks: int
    hit_blocks: int

    @property
    def hit_share(self) -> float | None:
        """``hit_blocks`` as a share of all references; None without any."""
        return self.hit_blocks / self.block_references if self.block_references else None


def summarize(
    requests: Iterable[Request], name: Callable[[int], str] = "request {}".format
) -> TraceSummary:
    """Summarise in one pass, as ``summarize_batches`` does."""
    return summarize_batches(batches_of(requests), name)


def summarize_batches(batches: Iterable[Batch], name: Callable[[int], str]) -> TraceSummary:
    """Summarise in one pass; memory is that of a batch and of the different lengths.

    ``name`` says where a request is, by its number from 0.

    Raises:
        TraceError: There are no requests, or an id has two histories.
    """
    input_lengths, output_lengths = Counter[int](), Counter[int]()
    first_s, last_s = inf, -inf
    count = hash_block_tokens = 0
    with Histories() as histories:
        for batch in batches:
            input_lengths.update(batch.input_tokens.tolist())
            output_lengths.update(batch.output_tokens.tolist())
            first_s = min(first_s, float(batch.arrival_s.min()))
            last_s = max(last_s, float(batch.arrival_s.max()))
            hash_block_tokens = hash_block_tokens or batch.hash_block_tokens
            histories.add_runs(count + batch.request, batch.start, batch.count)
            count += len(batch.arrival_s)
        if not count:
            raise TraceError("There are no requests to summarise.")
        distinct = histories.check(name)
    return TraceSummary(
        requests=count,
        duration_s=last_s - first_s,
        input_tokens=_summarize_lengths(input_lengths),
        output_tokens=_summarize_lengths(output_lengths),
        hash_block_tokens=hash_block_tokens,
        block_references=histories.references,
        distinct_blocks=distinct,
        hit_blocks=histories.references - distinct,  # an id's history is its own: none is missed
    )
