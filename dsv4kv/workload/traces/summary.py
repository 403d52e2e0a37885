"""What a trace is like: how much it asks for, and how much of it repeats."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.gather import GatheredRuns
from dsv4kv.workload.traces.repeats import count_repeats


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Lengths in tokens; percentiles are lengths that occur (nearest rank)."""

    total: int
    p50: int
    p90: int
    p99: int
    max: int

    @classmethod
    def of(cls, lengths: "array[int]") -> Self:
        """Summarise at least one length."""
        values = np.frombuffer(lengths, dtype=np.intc)
        p50, p90, p99 = np.percentile(values, (50, 90, 99), method="inverted_cdf")
        return cls(
            total=int(values.sum(dtype=np.int64)),
            p50=int(p50),
            p90=int(p90),
            p99=int(p99),
            max=int(values.max()),
        )


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


def summarize(requests: Iterable[Request]) -> TraceSummary:
    """Summarise in one pass; holds the runs of all ids, and 8 bytes per request.

    Raises:
        TraceError: There are no requests.
    """
    input_lengths, output_lengths = array("i"), array("i")
    first_s, last_s = np.inf, -np.inf
    hash_block_tokens = 0
    runs = GatheredRuns()
    for number, request in enumerate(requests):
        input_lengths.append(request.input_tokens)
        output_lengths.append(request.output_tokens)
        first_s, last_s = min(first_s, request.arrival_s), max(last_s, request.arrival_s)
        hash_block_tokens = hash_block_tokens or request.hash_block_tokens
        runs.add(number, request.prefix_hashes)
    if not input_lengths:
        raise TraceError("There are no requests to summarise.")
    request_of, start, count = runs.columns()
    distinct, hits = count_repeats(request_of, start, count)
    return TraceSummary(
        requests=len(input_lengths),
        duration_s=last_s - first_s,
        input_tokens=LengthSummary.of(input_lengths),
        output_tokens=LengthSummary.of(output_lengths),
        hash_block_tokens=hash_block_tokens,
        block_references=int(count.sum()),
        distinct_blocks=distinct,
        hit_blocks=hits,
    )
