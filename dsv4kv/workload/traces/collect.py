"""A trace as the flat arrays that its analysis works on, and what is wrong with its ids."""

from array import array
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.prefix.analysis.checks import find_contradiction, first_step_back
from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces import read_placed_trace, read_trace
from dsv4kv.workload.traces.options import DEFAULTS, ReadOptions
from dsv4kv.workload.traces.runs import IdRuns

_BATCH_RUNS = 2**22  # ids of formats without runs are joined once so many have come


class _Runs:
    """Gathers ids as runs; neighbours that continue each other are joined in batches."""

    def __init__(self) -> None:
        self._whole: list[tuple[Ints, Ints, Ints]] = []
        self._request, self._start, self._count = array("q"), array("q"), array("q")

    def add(self, request: int, starts: "array[int]", counts: "array[int]") -> None:
        self._request.extend([request] * len(starts))
        self._start.extend(starts)
        self._count.extend(counts)
        if len(self._start) >= _BATCH_RUNS:
            self._flush()

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Request, first id and length of every maximal run."""
        self._flush()
        request, start, count = (
            np.concatenate(column) for column in zip(*self._whole, strict=True)
        )
        return request, start, count

    def _flush(self) -> None:
        columns = (self._request, self._start, self._count)
        request, start, count = (np.frombuffer(c, np.int64).copy() for c in columns)
        self._request, self._start, self._count = array("q"), array("q"), array("q")
        follows = (request[1:] == request[:-1]) & (start[1:] == start[:-1] + count[:-1])
        first = np.flatnonzero(np.concatenate([[True], ~follows])[: len(start)])
        joined = np.add.reduceat(count, first) if len(first) else count
        self._whole.append((request[first], start[first], joined))


def collect_paths(requests: Iterable[Request]) -> PathTable:
    """Read all requests into arrays; memory is that of the runs.

    Raises:
        TraceError: There are no requests, none has ids, ids beyond 64 bits, or two block sizes.
    """
    runs = _Runs()
    arrival, tokens_in, tokens_out, counts = array("d"), array("q"), array("q"), array("q")
    block_tokens = 0
    for number, request in enumerate(requests):
        ids = request.prefix_hashes
        arrival.append(request.arrival_s)
        tokens_in.append(request.input_tokens)
        tokens_out.append(request.output_tokens)
        counts.append(len(ids))
        block_tokens = block_tokens or request.hash_block_tokens
        if isinstance(ids, IdRuns):
            runs.add(number, array("q", ids.starts.tobytes()), array("q", ids.counts.tobytes()))
        elif ids:
            runs.add(number, _fit(ids), array("q", [1]) * len(ids))
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


def _fit(ids: Iterable[int]) -> "array[int]":
    """64-bit ids; unsigned ones wrap around, which keeps them apart."""
    try:
        return array("q", ids)
    except OverflowError:
        return array("q", [(number + 2**63) % 2**64 - 2**63 for number in ids])


def load_paths(
    source: str | Path, trace_format: str = "auto", options: ReadOptions = DEFAULTS
) -> PathTable:
    """Read a trace for analysis and make sure that it can be one.

    Raises:
        TraceError: What reading raises; ids that contradict each other; a clock that runs back.
    """
    table = collect_paths(read_trace(source, trace_format, options))
    if (back := first_step_back(table)) is not None:
        place = _place_of(back, source, trace_format, options)
        raise TraceError(
            f"{place}: the request arrives at {table.arrival_s[back]:,.3f} s, the one before it "
            f"at {table.arrival_s[back - 1]:,.3f} s: the clock runs backwards. Sort the trace: "
            "dsv4kv trace convert SOURCE OUT --sort."
        )
    if (wrong := find_contradiction(table)) is not None:
        there, here = sorted((wrong.request, wrong.earlier))
        raise TraceError(
            f"{_place_of(here, source, trace_format, options)}: block id {wrong.id} has another "
            f"history than at {_place_of(there, source, trace_format, options)}: an id stands for "
            "a block and everything before it, so it always follows the same id."
        )
    return table


def place_of_longest(
    table: PathTable, source: str | Path, trace_format: str, options: ReadOptions
) -> str:
    """File and line of the request with the longest prompt."""
    return _place_of(int(table.input_tokens.argmax()), source, trace_format, options)


def _place_of(request: int, source: str | Path, trace_format: str, options: ReadOptions) -> str:
    """Read the trace again up to a request: places are not kept for all."""
    placed = read_placed_trace(source, trace_format, options)
    return next(islice(placed, request, None))[0]
