"""Bailian (Qwen) traces (alibaba-edu/qwen-bailian-usagetraces-anon): JSON lines, times in seconds.

Every line holds its whole prompt: ``hash_ids`` stand for 16 tokens and their history.
"""

from collections.abc import Iterator

from dsv4kv.traces.batch import LineShape
from dsv4kv.traces.files import TraceLines
from dsv4kv.traces.format import TraceFormat, plain
from dsv4kv.traces.records import json_records, read_counted_ids, read_time, read_tokens
from dsv4kv.traces.request import Request

BLOCK_TOKENS = 16
SHAPE = LineShape(
    "timestamp", 1.0, "input_length", "output_length", "hash_ids", BLOCK_TOKENS, partial=False
)


def read_bailian(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; chat ids, turns and types are left alone."""
    for record in json_records(lines):
        input_tokens = read_tokens(record, "input_length", low=1)
        yield Request(
            arrival_s=read_time(record, "timestamp", "seconds"),
            input_tokens=input_tokens,
            output_tokens=read_tokens(record, "output_length", low=0),
            prefix_hashes=read_counted_ids(record, "hash_ids", input_tokens, BLOCK_TOKENS),
            hash_block_tokens=BLOCK_TOKENS,
        )


BAILIAN = TraceFormat(
    plain(read_bailian),
    frozenset({"parent_chat_id"}),
    '{"chat_id": …, "parent_chat_id": …, "timestamp": s, "input_length": tokens, '
    '"output_length": tokens, "hash_ids": [...]}',
    SHAPE,
)
