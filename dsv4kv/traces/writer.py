"""Writes a trace as lines of a format: whole or not at all, the same bytes every time.

Export to libCacheSim's ``oracleGeneral``: 24 bytes for every block reference. Little-endian: u32
time in seconds, u64 id, u32 size, i64 number of the next reference to the same id, -1 where there
is none. A prompt's blocks are written last to first, as a prefix cache touches them; sizes are 1,
so that a capacity counts blocks.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4kv.choices import TRACE_LINES, choose
from dsv4kv.errors import TraceError
from dsv4kv.prefix.paths import PathTable
from dsv4kv.traces.files import writing
from dsv4kv.traces.request import Request

STORES_MARK = "stores_only"
"""Field of every line of a trace of what a server stored."""


def write_trace(
    requests: Iterable[Request], path: Path, trace_format: str = "dsv4kv", *, stores: bool = False
) -> int:
    """Write the requests, compressed if ``path`` ends in ``.gz``; return how many there were.

    ``stores``: mark them as what a server stored. The file appears under its name when it is
    complete, so a trace may be written over the file it is read from.

    Raises:
        TraceError: The file cannot be written, there are no requests, or the format (one of
            ``TRACE_LINES``) cannot express one.
    """
    count = 0
    write_lines = choose(TRACE_LINES, trace_format, "a format that traces are written in").load()
    lines = write_lines(requests)
    with writing(path) as file:
        for line in lines:
            marked = f'{line.rstrip()[:-1]},"{STORES_MARK}":true}}\n' if stores else line
            file.write(marked.encode())
            count += 1
        if not count:
            raise TraceError(f"{path}: not written, there are no requests.")
    return count


RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])


def write_oracle(requests: Iterable[Request], path: Path) -> int:
    """Write all block references; return how many there were.

    They are held in memory, 24 bytes each. A file whose name ends in ``.gz`` is compressed.

    Raises:
        TraceError: The file cannot be written, or there are no block ids.
    """
    from dsv4kv.traces.collect import collect_paths

    records = to_records(collect_paths(requests))
    with writing(path) as file:
        file.write(records.tobytes())
    return len(records)


def to_records(table: PathTable) -> NDArray[np.void]:
    """RECORD[references] of a trace.

    Raises:
        TraceError: Times beyond 32 bits of seconds.
    """
    start_s = float(table.arrival_s.min())
    if table.arrival_s.max() - start_s >= 2**32:
        raise TraceError("the trace is longer than 2^32 s, which oracleGeneral cannot represent.")
    request = np.repeat(np.arange(len(table)), table.counts)
    counts = np.diff(table.ends, prepend=0)
    heads = table.offsets[:-1][np.diff(table.offsets) > 0]
    counts[heads] = table.ends[heads]
    first = np.repeat(table.starts - (np.cumsum(counts) - counts), counts)
    ids = first + np.arange(len(first))
    last = np.cumsum(table.counts)[request] - 1
    begin = last - table.counts[request] + 1
    backwards = last - (np.arange(len(ids)) - begin)
    records = np.zeros(len(ids), RECORD)
    records["time"] = (table.arrival_s[request] - start_s).astype(np.uint32)
    records["id"] = ids[backwards].view(np.uint64)
    records["size"] = 1
    records["next"] = _next_use(ids[backwards])
    return records


def _next_use(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(ids, kind="stable")
    follows = np.full(len(ids), -1, np.int64)
    same = ids[order[1:]] == ids[order[:-1]]
    follows[order[:-1][same]] = order[1:][same]
    return follows
