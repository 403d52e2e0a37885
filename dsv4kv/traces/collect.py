"""A trace as the flat arrays that its analysis works on, and what is wrong with its ids."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.prefix.paths import PathTable
from dsv4kv.traces import read_placed_trace, read_trace
from dsv4kv.traces.files import DEFAULTS, ReadOptions
from dsv4kv.traces.request import Batch, Request, batches_of
from dsv4kv.traces.summary import Histories


def collect_paths(requests: Iterable[Request]) -> PathTable:
    """Read all requests into arrays; memory is that of the runs.

    Raises:
        TraceError: There are no requests, none has ids, ids beyond 64 bits, or two block sizes.
    """
    batches = list(batches_of(requests))
    if not any(len(batch.request) for batch in batches):
        raise TraceError(
            "no request has block ids: what its prompts share is not known. Take a trace with "
            "hash_ids, or make one with: dsv4kv trace synth."
        )
    begins = np.cumsum([0, *(len(batch.arrival_s) for batch in batches)])
    request = [begin + batch.request for begin, batch in zip(begins, batches, strict=False)]
    return _table(
        Batch(
            np.concatenate([batch.arrival_s for batch in batches]),
            np.concatenate([batch.input_tokens for batch in batches]),
            np.concatenate([batch.output_tokens for batch in batches]),
            next(size for batch in batches if (size := batch.hash_block_tokens)),
            np.concatenate(request),
            np.concatenate([batch.start for batch in batches]),
            np.concatenate([batch.count for batch in batches]),
        )
    )


def tables_of(batches: Iterable[Batch]) -> Iterator[PathTable]:
    """Some requests after the other as such arrays, for analysis that keeps no trace."""
    return map(_table, batches)


def _table(batch: Batch) -> PathTable:
    offsets = np.searchsorted(batch.request, np.arange(len(batch.arrival_s) + 1))
    total = batch.count.cumsum()
    until = np.concatenate([[0], total])[offsets]
    return PathTable(
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
    request = np.repeat(np.arange(len(table)), np.diff(table.offsets))
    before = np.concatenate([[0], table.ends[:-1]])
    before[table.offsets[request] == np.arange(len(request))] = 0
    with Histories(len(request) + 1) as histories:  # one batch, as it fits already
        histories.add_runs(request, table.starts, table.ends - before)
        histories.check(name)


def place_of(request: int, source: str | Path, trace_format: str, options: ReadOptions) -> str:
    """File and line of a request: reads the trace again up to it, places are not kept for all."""
    placed = read_placed_trace(source, trace_format, options)
    return next(islice(placed, request, None))[0]
