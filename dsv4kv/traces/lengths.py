"""Formats that have only lengths: Azure, BurstGPT and ShareGPT.

Azure LLM inference traces of 2023 and 2024 (Azure/AzurePublicDataset): CSV without blocks. Times
are wall clock with up to nine fractional digits; 2024 adds a UTC offset. A time without an offset
is read as UTC.

ShareGPT-like lists of prompt and output lengths: JSON lines, or one JSON array. Lengths go by
several names; a list of token ids stands for its length. ``arrival_s`` is optional (0: all
requests wait from the start).
"""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from dsv4kv.traces.files import Defect, TraceLines
from dsv4kv.traces.format import TraceFormat, plain
from dsv4kv.traces.records import checked_tokens, json_records, read_time
from dsv4kv.traces.request import Request

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


def parse_row(line: str) -> list[str]:
    """Split one line into its fields, without the spaces around them."""
    try:
        return [field.strip() for field in next(csv.reader([line], strict=True), [])]
    except csv.Error as error:
        raise Defect(f"broken CSV ({error})") from None


def csv_rows(lines: TraceLines, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield every row after the header; the header must name all ``columns``."""
    lines.peek()
    header = parse_row(next(lines))
    missing = [name for name in columns if name not in header]
    if missing:
        raise Defect(f"the header has no column {' or '.join(missing)}")
    try:
        for row in csv.reader(lines, strict=True):
            if row and not (len(row) == 1 and not row[0].strip()):  # blank lines
                yield _name_fields(header, row)
    except csv.Error as error:
        raise Defect(f"broken CSV ({error})") from None


def row_tokens(row: dict[str, str], name: str, low: int) -> int:
    """Return the whole number of a field, at least ``low``."""
    text = row[name].strip()
    value = int(text) if _WHOLE_NUMBER.fullmatch(text) else text
    return checked_tokens(value, name, low)


def _name_fields(header: list[str], row: list[str]) -> dict[str, str]:
    if len(row) != len(header):
        raise Defect(f"the row has {len(row)} fields, the header {len(header)}")
    return dict(zip(header, row, strict=True))


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def read_azure(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; arrivals count from the first row."""
    first_ns: int | None = None
    for row in csv_rows(lines, _AZURE):
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


_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_burstgpt(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; arrivals count from the first row."""
    first_s: float | None = None
    for row in csv_rows(lines, _BURSTGPT):
        time_s = _parse_time_s(row["Timestamp"])
        first_s = time_s if first_s is None else first_s
        if row["Request tokens"].strip() == "0":
            raise Defect(
                "Request tokens is 0: a failed request, which never held cache; "
                "take the BurstGPT_without_fails files of the same release"
            )
        yield Request(
            arrival_s=time_s - first_s,
            input_tokens=row_tokens(row, "Request tokens", low=1),
            output_tokens=row_tokens(row, "Response tokens", low=0),
        )


def _parse_time_s(text: str) -> float:
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not math.isfinite(time_s):
        raise Defect(f"Timestamp is {text[:40]!r}, expected a number of seconds")
    return time_s


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


AZURE = TraceFormat(
    plain(read_azure),
    frozenset({"ContextTokens", "GeneratedTokens"}),
    "CSV with TIMESTAMP,ContextTokens,GeneratedTokens",
)
BURSTGPT = TraceFormat(
    plain(read_burstgpt),
    frozenset({"Request tokens", "Response tokens"}),
    "CSV with Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
)
SHAREGPT = TraceFormat(
    plain(read_sharegpt),
    frozenset(INPUT_NAMES),
    '{"prompt_len": tokens, "output_len": tokens}',
)
