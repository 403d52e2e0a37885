"""A trace as the flat arrays that its analysis works on, and what is wrong with its ids."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.traces import read_placed_trace, read_trace
from dsv4kv.traces.files import DEFAULTS, ReadOptions
from dsv4kv.traces.paths import PathTable
from dsv4kv.traces.request import NO_IDS, Batch, Request, batches_of
from dsv4kv.traces.summary import Histories


def collect_paths(requests: Iterable[Request]) -> PathTable:
    """Read all requests into arrays, in the memory of their runs of ids; raises ``TraceError``."""
    batches = list(batches_of(requests))
    if not any(len(batch.request) for batch in batches):
        raise TraceError(NO_IDS)
    before = np.cumsum([0, *(len(batch.arrival_s) for batch in batches)])
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("arrival_s", "input_tokens", "output_tokens", "start", "count")
    }
    columns["request"] = np.concatenate(
        [first + batch.request for first, batch in zip(before, batches, strict=False)]
    )
    size = max(batch.hash_block_tokens for batch in batches)
    return table_of(Batch(**columns, hash_block_tokens=size))


def table_of(batch: Batch) -> PathTable:
    """The table of some requests."""
    counts = batch.ids_of_each()
    before = np.repeat(counts.cumsum() - counts, np.bincount(batch.request, minlength=len(counts)))
    return PathTable(
        block_tokens=batch.hash_block_tokens,
        arrival_s=batch.arrival_s,
        input_tokens=batch.input_tokens,
        output_tokens=batch.output_tokens,
        counts=counts,
        offsets=np.searchsorted(batch.request, np.arange(len(counts) + 1)),
        starts=batch.start,
        ends=batch.count.cumsum() - before,
    )


def load_paths(
    source: str | Path, trace_format: str = "auto", options: ReadOptions = DEFAULTS
) -> PathTable:
    """Read a trace for analysis and make sure that it can be one; raises ``TraceError``."""
    table = collect_paths(read_trace(source, trace_format, options))
    check_histories(table, lambda request: place_of(request, source, trace_format, options))
    return table


def check_histories(table: PathTable, name: Callable[[int], str]) -> None:
    """Raise ``TraceError`` where an id follows two blocks; ``name`` says where a request is."""
    request = np.repeat(np.arange(len(table)), np.diff(table.offsets))
    before = np.concatenate([[0], table.ends[:-1]])
    before[table.offsets[request] == np.arange(len(request))] = 0
    columns = table.arrival_s, table.input_tokens, table.output_tokens, table.block_tokens
    histories = Histories()
    histories.add(0, Batch(*columns, request, table.starts, table.ends - before))
    histories.check(name)


def place_of(request: int, source: str | Path, trace_format: str, options: ReadOptions) -> str:
    """File and line of a request: reads the trace again up to it, places are not kept for all."""
    placed = read_placed_trace(source, trace_format, options)
    return next(islice(placed, request, None))[0]
