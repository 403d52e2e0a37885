"""What a trace is like: how much it asks for, and how much of it repeats."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf

from dsv4kv.errors import TraceError
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.histories import Histories
from dsv4kv.workload.traces.lengths import LengthCounts, LengthSummary

_BATCH = 256  # requests looked at together: few, for their prompts may be long


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
    """Summarise in one pass; memory is that of a batch and of the different lengths.

    ``name`` says where a request is, by its number from 0.

    Raises:
        TraceError: There are no requests, or an id has two histories.
    """
    input_lengths, output_lengths = LengthCounts(), LengthCounts()
    first_s, last_s = inf, -inf
    count = hash_block_tokens = 0
    with Histories() as histories:
        left = iter(requests)
        while batch := list(islice(left, _BATCH)):
            input_lengths.add(request.input_tokens for request in batch)
            output_lengths.add(request.output_tokens for request in batch)
            times_s = [request.arrival_s for request in batch]
            first_s, last_s = min(first_s, *times_s), max(last_s, *times_s)
            sizes = [request.hash_block_tokens for request in batch]
            hash_block_tokens = hash_block_tokens or next(filter(None, sizes), 0)
            for number, request in enumerate(batch, start=count):
                histories.add(number, request.prefix_hashes)
            count += len(batch)
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
