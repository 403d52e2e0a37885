"""Writes a trace as lines of a format: whole or not at all, the same bytes every time.

Export to libCacheSim's ``oracleGeneral``: 24 bytes for every block reference. Little-endian: u32
time in seconds, u64 id, u32 size, i64 number of the next reference to the same id, -1 where there
is none. A prompt's blocks are written last to first, as a prefix cache touches them; sizes are 1,
so that a capacity counts blocks.
"""

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dsv4kv.choices import TRACE_LINES, choose
from dsv4kv.errors import TraceError
from dsv4kv.traces.files import writing
from dsv4kv.traces.request import NO_IDS, Request, as_runs

STORES_MARK = "stores_only"
"""Field of every line of a trace of what a server stored."""


def write_trace(
    requests: Iterable[Request], path: Path, trace_format: str = "dsv4kv", *, stores: bool = False
) -> int:
    """Write the requests, compressed if ``path`` ends in ``.gz``; return how many there were.

    ``stores``: mark them as what a server stored. The file appears under its name when it is
    complete, so a trace may be written over the file it is read from. Raises ``TraceError``.
    """
    write_lines = choose(TRACE_LINES, trace_format, "a format that traces are written in").load()
    count = 0
    with writing(path) as file:
        for line in write_lines(requests):
            marked = f'{line.rstrip()[:-1]},"{STORES_MARK}":true}}\n' if stores else line
            file.write(marked.encode())
            count += 1
        if not count:
            raise TraceError(f"{path}: not written, there are no requests.")
    return count


RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])


def write_oracle(requests: Iterable[Request], path: Path) -> int:
    """Write all block references, held in memory; return how many; raises ``TraceError``.

    A file whose name ends in ``.gz`` is compressed.
    """
    ids, counts, arrival_s = [np.zeros(0, np.int64)], array("q"), array("d")
    for request in requests:
        ids.append(as_runs(request.prefix_hashes).array()[::-1])
        counts.append(len(ids[-1]))
        arrival_s.append(request.arrival_s)
    records = np.zeros(sum(counts), RECORD)
    if not len(records):
        raise TraceError(NO_IDS)
    if max(arrival_s) - min(arrival_s) >= 2**32:
        raise TraceError("the trace is longer than 2^32 s, which oracleGeneral cannot represent.")
    records["time"] = np.repeat(np.array(arrival_s) - min(arrival_s), counts)
    records["id"] = np.concatenate(ids).view(np.uint64)
    records["size"] = 1
    records["next"] = -1
    order = records["id"].argsort(kind="stable")
    same = records["id"][order[1:]] == records["id"][order[:-1]]
    records["next"][order[:-1][same]] = order[1:][same]
    with writing(path) as file:
        file.write(records.tobytes())
    return len(records)
