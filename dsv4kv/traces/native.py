"""The toolkit's own format: JSON lines that say all a ``Request`` knows.

    {"arrival_s":0.5,"input_tokens":130,"output_tokens":9,"prefix_hashes":[4,7],
     "hash_block_tokens":128,"session":3,"answer_s":1.5}

The last three are optional. One block size holds for the whole trace. Ids that come in long runs
are written as ``prefix_runs``: first id and count of every run.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np

from dsv4kv.traces.files import Defect, TraceLines
from dsv4kv.traces.format import TraceFormat, plain
from dsv4kv.traces.records import (
    ODD_ID,
    checked_ids,
    json_line,
    json_records,
    read_counted_ids,
    read_numbers,
    read_time,
    read_tokens,
)
from dsv4kv.traces.request import Request
from dsv4kv.traces.runs import IdRuns, signed


def read_native(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; other fields of a line are left alone."""
    block_tokens = 0
    for record in json_records(lines):
        request = _read_request(record)
        block_tokens = block_tokens or request.hash_block_tokens
        if request.hash_block_tokens not in {0, block_tokens}:
            raise Defect(
                f"hash_block_tokens is {request.hash_block_tokens}, earlier lines have "
                f"{block_tokens}: a trace has one block size"
            )
        yield request


def format_native(requests: Iterable[Request]) -> Iterator[str]:
    """Lines of a trace."""
    return map(_format_request, requests)


def _format_request(request: Request) -> str:
    record: dict[str, Any] = {
        "arrival_s": request.arrival_s,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
    }
    if request.hash_block_tokens:
        ids = request.prefix_hashes
        if isinstance(ids, IdRuns):
            record["prefix_runs"] = np.stack([ids.starts, ids.counts], axis=1).ravel().tolist()
        else:
            record["prefix_hashes"] = ids
        record["hash_block_tokens"] = request.hash_block_tokens
    if request.session is not None:
        record["session"] = request.session
    if request.answer_s is not None:
        record["answer_s"] = request.answer_s
    return json_line(record)


def _read_request(record: dict[str, Any]) -> Request:
    input_tokens = read_tokens(record, "input_tokens", low=1)
    listed = {"prefix_hashes", "prefix_runs", "hash_block_tokens"} & record.keys()
    block_tokens = read_tokens(record, "hash_block_tokens", low=1) if listed else 0
    session = record.get("session")  # what others call so may be anything
    answer_s = record.get("answer_s")
    hashes: Sequence[int] = ()
    if "prefix_runs" in record:
        hashes = _read_runs(record, input_tokens, block_tokens)
    elif listed:
        hashes = read_counted_ids(
            {"prefix_hashes": []} | record, "prefix_hashes", input_tokens, block_tokens
        )
    return Request(
        arrival_s=read_time(record, "arrival_s", "seconds"),
        input_tokens=input_tokens,
        output_tokens=read_tokens(record, "output_tokens", low=0),
        prefix_hashes=hashes,
        hash_block_tokens=block_tokens,
        session=session if type(session) is int else None,
        answer_s=answer_s if type(answer_s) is float and 0 <= answer_s < inf else None,
    )


def _read_runs(record: dict[str, Any], input_tokens: int, block_tokens: int) -> IdRuns:
    numbers = read_numbers(record, "prefix_runs")
    full, partial = divmod(input_tokens, block_tokens)
    starts, counts = numbers[::2], numbers[1::2]
    if (
        len(numbers) % 2
        or min(counts, default=1) < 1
        or sum(counts) not in {full, full + bool(partial)}
    ):
        raise Defect(
            "prefix_runs is no list of first id, count, first id, count, … of the "
            f"{full + bool(partial):,} blocks of {block_tokens} tokens"
        )
    # no run may contain it: then all ids are checked where the ends are
    odd = (
        ODD_ID
        for start, count in zip(starts, counts, strict=True)
        if ODD_ID - start in range(count)
    )
    ends = (start + count - 1 for start, count in zip(starts, counts, strict=True))
    checked_ids((*starts, *ends, *odd), "prefix_runs")
    return IdRuns(np.array(signed(starts)), np.array(counts, np.int64))


NATIVE = TraceFormat(
    plain(read_native),
    frozenset({"input_tokens", "prefix_hashes", "prefix_runs"}),
    '{"arrival_s": seconds, "input_tokens": tokens, "output_tokens": tokens}',
)
