"""The toolkit's own format: JSON lines that say all a ``Request`` knows.

    {"arrival_s":0.5,"input_tokens":130,"output_tokens":9,"prefix_hashes":[4,7],
     "hash_block_tokens":128}

The last two are optional. One block size holds for the whole trace.
"""

import json
from collections.abc import Iterator
from typing import Any

from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.fields import read_block_ids, read_time, read_tokens
from dsv4kv.workload.traces.jsonl import json_lines
from dsv4kv.workload.traces.lines import Defect, TraceLines


def read_native(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; other fields of a line are left alone."""
    block_tokens = 0
    for record in json_lines(lines):
        request = _read_request(record)
        block_tokens = block_tokens or request.hash_block_tokens
        if request.hash_block_tokens not in {0, block_tokens}:
            raise Defect(
                f"hash_block_tokens is {request.hash_block_tokens}, earlier lines have "
                f"{block_tokens}: a trace has one block size"
            )
        yield request


def format_request(request: Request) -> str:
    """Return the request as one line, line end included."""
    record: dict[str, Any] = {
        "arrival_s": request.arrival_s,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
    }
    if request.hash_block_tokens:
        record["prefix_hashes"] = request.prefix_hashes
        record["hash_block_tokens"] = request.hash_block_tokens
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"


def _read_request(record: dict[str, Any]) -> Request:
    hashes = read_block_ids(record, "prefix_hashes") if "prefix_hashes" in record else ()
    has_blocks = bool(hashes) or "hash_block_tokens" in record
    request = Request(
        arrival_s=read_time(record, "arrival_s", "seconds"),
        input_tokens=read_tokens(record, "input_tokens", low=1),
        output_tokens=read_tokens(record, "output_tokens", low=0),
        prefix_hashes=hashes,
        hash_block_tokens=read_tokens(record, "hash_block_tokens", low=1) if has_blocks else 0,
    )
    if has_blocks:
        _check_blocks(request)
    return request


def _check_blocks(request: Request) -> None:
    full, partial = divmod(request.input_tokens, request.hash_block_tokens)
    if len(request.prefix_hashes) not in {full, full + bool(partial)}:
        raise Defect(
            f"prefix_hashes has {len(request.prefix_hashes):,} ids, expected "
            f"{full + bool(partial):,}: one per {request.hash_block_tokens} of "
            f"{request.input_tokens:,} tokens, the last may be partial or left out"
        )
