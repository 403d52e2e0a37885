"""ShareGPT-like lists of prompt and output lengths: JSON lines, or one JSON array.

Lengths go by several names; a list of token ids stands for its length. ``arrival_s`` is optional
(0: all requests wait from the start). JSON lines stream; an array is held in memory as a whole.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.fields import checked_tokens, read_time
from dsv4kv.workload.traces.jsonl import json_records
from dsv4kv.workload.traces.lines import Defect, TraceLines

INPUT_NAMES = ("prompt_len", "input_length", "prompt_tokens", "prompt_token_ids", "input_ids")
OUTPUT_NAMES = (
    "output_len",
    "output_length",
    "completion_tokens",
    "output_token_ids",
    "output_ids",
)


def read_sharegpt(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; the first of the known names in a record is taken."""
    for record in json_records(lines):
        yield Request(
            arrival_s=read_time(record, "arrival_s", "seconds") if "arrival_s" in record else 0.0,
            input_tokens=_read_length(record, INPUT_NAMES, low=1),
            output_tokens=_read_length(record, OUTPUT_NAMES, low=0),
        )


def _read_length(record: dict[str, Any], names: Sequence[str], low: int) -> int:
    name = next((name for name in names if name in record), None)
    if name is None:
        raise Defect(f"one of {', '.join(names)} is missing")
    value = record[name]
    if type(value) is list and set(map(type, value)) <= {int}:
        value = len(value)
    return checked_tokens(value, name, low)
