"""A trace as the flat arrays that its analysis works on, and what is wrong with its ids."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.prefix.paths import PathTable, find_contradiction
from dsv4kv.traces import read_placed_trace, read_trace
from dsv4kv.traces.files import DEFAULTS, ReadOptions
from dsv4kv.traces.request import Batch, GatheredRuns, Request
from dsv4kv.traces.summary import Conflict, contradiction


def collect_paths(requests: Iterable[Request]) -> PathTable:
    """Read all requests into arrays; memory is that of the runs.

    Raises:
        TraceError: There are no requests, none has ids, ids beyond 64 bits, or two block sizes.
    """
    runs = GatheredRuns()
    arrival, tokens_in, tokens_out, counts = array("d"), array("q"), array("q"), array("q")
    block_tokens = 0
    for number, request in enumerate(requests):
        ids = request.prefix_hashes
        arrival.append(request.arrival_s)
        tokens_in.append(request.input_tokens)
        tokens_out.append(request.output_tokens)
        counts.append(len(ids))
        block_tokens = block_tokens or request.hash_block_tokens
        runs.add(number, ids)
    if not block_tokens or not any(counts):
        raise TraceError(
            "no request has block ids: what its prompts share is not known. Take a trace with "
            "hash_ids, or make one with: dsv4kv trace synth."
        )
    request_of, start, count = runs.columns()
    offsets = np.searchsorted(request_of, np.arange(len(counts) + 1))
    total = np.cumsum(count)
    before = np.concatenate([[0], total])[offsets[request_of]]
    return PathTable(
        block_tokens=block_tokens,
        arrival_s=np.frombuffer(arrival),
        input_tokens=np.frombuffer(tokens_in, np.int64),
        output_tokens=np.frombuffer(tokens_out, np.int64),
        counts=np.frombuffer(counts, np.int64),
        offsets=offsets,
        starts=start,
        ends=total - before,
    )


def tables_of(batches: Iterable[Batch]) -> Iterator[PathTable]:
    """Some requests after the other as such arrays, for analysis that keeps no trace."""
    for batch in batches:
        requests = len(batch.arrival_s)
        offsets = np.searchsorted(batch.request, np.arange(requests + 1))
        total = batch.count.cumsum()
        until = np.concatenate([[0], total])[offsets]
        yield PathTable(
            block_tokens=batch.hash_block_tokens,
            arrival_s=batch.arrival_s,
            input_tokens=batch.input_tokens,
            output_tokens=batch.output_tokens,
            counts=np.diff(until),
            offsets=offsets,
            starts=batch.start,
            ends=total - until[batch.request],
        )


def load_paths(
    source: str | Path, trace_format: str = "auto", options: ReadOptions = DEFAULTS
) -> PathTable:
    """Read a trace for analysis and make sure that it can be one.

    Raises:
        TraceError: What reading raises; ids that contradict each other.
    """
    table = collect_paths(read_trace(source, trace_format, options))
    check_histories(table, lambda request: place_of(request, source, trace_format, options))
    return table


def check_histories(table: PathTable, name: Callable[[int], str]) -> None:
    """Refuse ids that contradict each other; ``name`` says where a request is.

    Raises:
        TraceError: An id follows two different blocks.
    """
    if (wrong := find_contradiction(table)) is None:
        return
    raise contradiction(Conflict(wrong.request, wrong.earlier, wrong.id), name)


def place_of(request: int, source: str | Path, trace_format: str, options: ReadOptions) -> str:
    """File and line of a request: reads the trace again up to it, places are not kept for all."""
    placed = read_placed_trace(source, trace_format, options)
    return next(islice(placed, request, None))[0]
