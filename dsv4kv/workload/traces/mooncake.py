"""Mooncake traces (kvcache-ai/Mooncake): one JSON object per request, times in milliseconds.

Each of the ``hash_ids`` stands for 512 tokens and their history; the last may be partial.
"""

from collections.abc import Iterator

from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.fields import read_block_ids, read_time, read_tokens
from dsv4kv.workload.traces.jsonl import json_lines
from dsv4kv.workload.traces.lines import Defect, TraceLines

BLOCK_TOKENS = 512


def read_mooncake(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; other fields of a line are left alone."""
    for record in json_lines(lines):
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
