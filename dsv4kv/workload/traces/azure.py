"""Azure LLM inference traces of 2023 and 2024 (Azure/AzurePublicDataset): CSV without blocks.

Times are wall clock with up to nine fractional digits; 2024 adds a UTC offset. A time without
an offset is read as UTC.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.lines import Defect, TraceLines
from dsv4kv.workload.traces.rows import csv_rows, row_tokens

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def read_azure(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; arrivals count from the first row."""
    first_ns: int | None = None
    for row in csv_rows(lines, _COLUMNS):
        time_ns = _parse_time_ns(row["TIMESTAMP"].strip())
        first_ns = time_ns if first_ns is None else first_ns
        yield Request(
            arrival_s=(time_ns - first_ns) / 1e9,
            input_tokens=row_tokens(row, "ContextTokens", low=1),
            output_tokens=row_tokens(row, "GeneratedTokens", low=0),
        )


def _parse_time_ns(text: str) -> int:
    """Nanoseconds since 1970; datetime alone would drop the seventh fractional digit."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + (match[3] or ""))
    except ValueError:
        raise Defect(
            f"TIMESTAMP is {text[:40]!r}, expected a time such as 2023-11-16 18:17:03.9799600"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int((match[2] or "").ljust(9, "0"))
