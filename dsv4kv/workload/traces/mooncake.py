"""Mooncake traces (kvcache-ai/Mooncake): one JSON object per request, times in milliseconds.

Each of the ``hash_ids`` stands for 512 tokens and their history; the last may be partial.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from dsv4kv.errors import TraceError
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.batch import LineShape
from dsv4kv.workload.traces.fields import read_block_ids, read_time, read_tokens
from dsv4kv.workload.traces.jsonl import json_line, json_records
from dsv4kv.workload.traces.lines import Defect, TraceLines
from dsv4kv.workload.traces.times import in_units

BLOCK_TOKENS = 512
SHAPE = LineShape(
    "timestamp", 1e3, "input_length", "output_length", "hash_ids", BLOCK_TOKENS, partial=True
)


def read_mooncake(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; other fields of a line are left alone."""
    for record in json_records(lines):
        input_tokens = read_tokens(record, "input_length", low=1)
        hash_ids = read_block_ids(record, "hash_ids")
        blocks = -(-input_tokens // BLOCK_TOKENS)
        if len(hash_ids) != blocks:
            raise Defect(
                f"hash_ids has {len(hash_ids):,} ids, expected {blocks:,}: "
                f"one per {BLOCK_TOKENS} of {input_tokens:,} tokens, the last may be partial"
            )
        yield Request(
            arrival_s=read_time(record, "timestamp", "milliseconds") / 1e3,
            input_tokens=input_tokens,
            output_tokens=read_tokens(record, "output_length", low=0),
            prefix_hashes=hash_ids,
            hash_block_tokens=BLOCK_TOKENS,
        )


def format_mooncake(requests: Iterable[Request]) -> Iterator[str]:
    """Lines of a trace.

    Raises:
        TraceError: A request's ids are not those of this format.
    """
    for number, request in enumerate(requests):
        check_mooncake(number, request)
        yield format_line(request)


def check_mooncake(number: int, request: Request) -> None:
    """Refuse a request, by its number in the trace, that the format cannot tell."""
    blocks = -(-request.input_tokens // BLOCK_TOKENS)
    if request.hash_block_tokens != BLOCK_TOKENS or len(request.prefix_hashes) != blocks:
        size, count = request.hash_block_tokens, len(request.prefix_hashes)
        has = f"{count:,} ids of {size:,} tokens" if size else "no ids"
        raise TraceError(
            f"a mooncake trace has an id for every {BLOCK_TOKENS} tokens of a prompt, the last "
            f"may be partial, and request {number} has {has} for {request.input_tokens:,}: take "
            "another format."
        )


def format_line(request: Request, first: int = 0, **others: Any) -> str:
    """One line that tells the ids from ``first`` on, and other fields as they are given."""
    record = {
        "timestamp": in_units(request.arrival_s, 1000),
        "input_length": request.input_tokens,
        "output_length": request.output_tokens,
        "hash_ids": list(request.prefix_hashes)[first:],
    }
    return json_line(record | others)
