"""Summary of a trace: tokens, repeated blocks, and whether ids agree.

Which block id follows which is known exactly, in the memory of the different runs of ids.

An id identifies a block and everything before it, so it has one parent: the id before it, or none
where prompts begin with it. Ids are given as runs of consecutive ids, in which every id but the
first has its parent next to it. So two runs of a trace either begin with the same id, after the
same parent, or have no id in common: of each first id the longest run says all, and ids are
counted without a set of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import TraceError
from dsv4kv.traces.paths import BATCH_REQUESTS, Batch, Ints, PathTable
from dsv4kv.traces.request import Request

RUN = np.dtype(
    [("start", "i8"), ("last", "i8"), ("parent", "i8"), ("root", "?"), ("request", "i8")]
)
"""First id, last id, the id before, whether there is none, and a request that has the run."""

Runs = NDArray[np.void]

_BATCH_RUNS = 2**18


class Histories:
    """Checks and counts the ids of requests, added in order, in the memory of different runs."""

    def __init__(self, batch_runs: int = _BATCH_RUNS) -> None:
        """``batch_runs``: runs that are held before the longest of each first id are kept."""
        self.references = 0  # ids of all requests together
        self._most = batch_runs
        self._parts, self._held = [np.zeros(0, RUN)], 0
        self._conflicts = list[tuple[int, int, int]]()  # two requests and an id that both have

    def add(self, first: int, batch: Batch) -> None:
        """Add the ids of some requests, from number ``first`` on."""
        self.references += int(batch.count.sum())
        rows = np.empty(len(batch.start), RUN)
        rows["start"], rows["last"] = batch.start, batch.start + batch.count - 1
        rows["request"], rows["root"] = first + batch.request, _changes(batch.request)
        rows["parent"] = np.where(rows["root"], 0, np.roll(rows["last"], 1))
        self._parts.append(rows)
        self._held += len(rows)
        if self._held >= self._most:
            self._most = max(self._most, 2 * len(self._sort()))

    def check(self, name: Callable[[int], str]) -> int:
        """Count the different ids; ``name`` says where a request is; raises ``TraceError``."""
        runs = self._sort()
        reach = np.maximum.accumulate(runs["last"])
        inside = np.flatnonzero(runs["start"][1:] <= reach[:-1]) + 1
        if len(inside):  # a run begins inside another
            at = inside[runs["request"][inside].argmin()]
            around = int((runs["last"] == reach[at - 1])[:at].argmax())
            self._remember(runs[at], runs[around])
        if self._conflicts:
            *requests, number = min(self._conflicts)
            there, here = sorted(requests)
            raise TraceError(
                f"{name(here)}: block id {number} has another history than at "
                f"{name(there)}: an id identifies a block and everything before it, so it always "
                "follows the same id."
            )
        return int((runs["last"] - runs["start"] + 1).sum())

    def _sort(self) -> Runs:
        """Keep the longest run of each first id, in order of these."""
        rows = np.concatenate(self._parts)
        rows = rows[rows["start"].argsort(kind="stable")]
        begins = _changes(rows["start"])
        first, number = np.flatnonzero(begins), begins.cumsum() - 1
        group = first[number]
        parent, root = rows["parent"], rows["root"]
        differs = np.flatnonzero((parent != parent[group]) | (root != root[group]))
        if len(differs):
            at = differs[rows["request"][differs].argmin()]
            self._remember(rows[at], rows[group[at]])
        if len(rows):
            last = rows["last"]
            longest = np.flatnonzero(last == np.maximum.reduceat(last, first)[number])
            rows = rows[longest[_changes(number[longest])]]
        self._parts, self._held = [rows], len(rows)
        return rows

    def _remember(self, run: Any, other: Any) -> None:
        self._conflicts.append((int(run["request"]), int(other["request"]), int(run["start"])))


def check_histories(table: PathTable, name: Callable[[int], str]) -> None:
    """Refuse a table in which an id has two histories, as ``Histories.check``."""
    request = np.repeat(np.arange(len(table)), np.diff(table.offsets))
    before = np.concatenate([[0], table.ends[:-1]])
    before[table.offsets[request] == np.arange(len(request))] = 0
    columns = table.arrival_s, table.input_tokens, table.output_tokens, table.block_tokens
    histories = Histories()
    histories.add(0, Batch(*columns, request, table.starts, table.ends - before))
    histories.check(name)


def check_histories_of(
    requests: Iterable[Request], name: Callable[[int], str]
) -> Iterator[Request]:
    """Pass requests on, then refuse an id with two histories, as ``Histories.check``."""
    left, count, histories = iter(requests), 0, Histories()
    while rows := list(islice(left, BATCH_REQUESTS)):
        histories.add(count, Batch.of(rows))
        count += len(rows)
        yield from rows
    histories.check(name)


def _changes(values: Ints) -> NDArray[np.bool_]:
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
    lengths, counts = (np.array(column) for column in zip(*sorted(times.items()), strict=True))
    up_to = counts.cumsum()
    ranks = [-(-percent * int(up_to[-1]) // 100) for percent in (50, 90, 99)]
    p50, p90, p99 = lengths[up_to.searchsorted(ranks)].tolist()
    return LengthSummary(int((lengths * counts).sum()), p50, p90, p99, int(lengths[-1]))


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A whole trace in a few numbers."""

    requests: int
    duration_s: float
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    hash_block_tokens: int  # tokens one prefix hash stands for; 0 if the trace has none
    block_references: int  # prefix hashes, all requests together
    distinct_blocks: int  # different prefix hashes
    # References a cache that forgets nothing would find; a request's hits end at its first miss
    hit_blocks: int
    arrivals: int  # different arrival times

    @property
    def hit_share(self) -> float | None:
        """``hit_blocks`` as a share of all references; None without any."""
        return self.hit_blocks / self.block_references if self.block_references else None


def summarize_batches(batches: Iterable[Batch], name: Callable[[int], str]) -> TraceSummary:
    """Summarise in one pass, in the memory of the different runs of ids and lengths.

    ``name`` says where a request is, by its number from 0. Raises ``TraceError``.
    """
    input_lengths, output_lengths = Counter[int](), Counter[int]()
    first_s, last_s = inf, -inf
    count = hash_block_tokens = 0
    arrivals, histories = 0, Histories()
    for batch in batches:
        input_lengths.update(batch.input_tokens.tolist())
        output_lengths.update(batch.output_tokens.tolist())
        times = np.unique(batch.arrival_s)
        arrivals += len(times) - int(times[0] == last_s)
        first_s, last_s = min(first_s, float(times[0])), max(last_s, float(times[-1]))
        hash_block_tokens = hash_block_tokens or batch.hash_block_tokens
        histories.add(count, batch)
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
        arrivals=arrivals,
    )
