"""What a trace is like: how much it asks for, and how much of it repeats."""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.prefix.paths import Ints
from dsv4kv.traces.batch import Batch, batches_of
from dsv4kv.traces.histories import Histories
from dsv4kv.traces.request import Request

_BATCH = 2**20


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Lengths in tokens; percentiles are lengths that occur (nearest rank)."""

    total: int
    p50: int
    p90: int
    p99: int
    max: int


class LengthCounts:
    """Counts how often each length occurs: memory is that of the different ones."""

    def __init__(self) -> None:
        self._batch = array("i")
        self._lengths: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)

    def add(self, lengths: Ints) -> None:
        """Count lengths."""
        self._batch.frombytes(lengths.astype(np.intc).tobytes())
        if len(self._batch) >= _BATCH:
            self._fold()

    def summarize(self) -> LengthSummary:
        """Summarise at least one length."""
        self._fold()
        lengths, up_to = self._lengths, self._counts.cumsum()
        ranks = [-(-percent * int(up_to[-1]) // 100) for percent in (50, 90, 99)]
        p50, p90, p99 = lengths[up_to.searchsorted(ranks)].tolist()
        total = int((lengths * self._counts).sum())
        return LengthSummary(total, p50, p90, p99, int(lengths[-1]))

    def _fold(self) -> None:
        new, counts = np.unique(np.frombuffer(self._batch, np.intc), return_counts=True)
        self._batch = array("i")
        both = np.concatenate([self._lengths, new])
        self._lengths, place = np.unique(both, return_inverse=True)
        together = np.zeros(len(self._lengths), np.int64)
        np.add.at(together, place, np.concatenate([self._counts, counts]))
        self._counts = together


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
    input_lengths, output_lengths = LengthCounts(), LengthCounts()
    first_s, last_s = inf, -inf
    count = hash_block_tokens = 0
    with Histories() as histories:
        for batch in batches:
            input_lengths.add(batch.input_tokens)
            output_lengths.add(batch.output_tokens)
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
        input_tokens=input_lengths.summarize(),
        output_tokens=output_lengths.summarize(),
        hash_block_tokens=hash_block_tokens,
        block_references=histories.references,
        distinct_blocks=distinct,
        hit_blocks=histories.references - distinct,  # an id's history is its own: none is missed
    )
