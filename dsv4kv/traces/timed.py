"""JSON lines of any names: a time, two lengths, and block ids where there are some."""

from collections.abc import Iterable, Iterator
from typing import Any

from dsv4kv.traces.files import DEFAULTS, Defect, ReadOptions, TraceLines
from dsv4kv.traces.format import TraceFormat
from dsv4kv.traces.records import json_line, json_records, read_counted_ids, read_time, read_tokens
from dsv4kv.traces.request import Request
from dsv4kv.units import UNITS_PER_SECOND


def read_timed(lines: TraceLines, options: ReadOptions) -> Iterator[Request]:
    """Yield the requests; ids count only where ``options`` say how many tokens they stand for."""
    for record in json_records(lines):
        yield _read_request(record, options)


def _read_request(record: dict[str, Any], options: ReadOptions) -> Request:
    names, size = options.fields, options.id_tokens
    input_tokens = read_tokens(record, names.input, low=1)
    if names.ids in record and size is None:
        raise Defect(f"{names.ids} is given, but not the tokens per id (--id-tokens)")
    ids = read_counted_ids(record, names.ids, input_tokens, size) if size else ()
    unit = options.time_unit
    return Request(
        arrival_s=read_time(record, names.time, unit) / UNITS_PER_SECOND[unit],
        input_tokens=input_tokens,
        output_tokens=read_tokens(record, names.output, low=0),
        prefix_hashes=ids,
        hash_block_tokens=size or 0,
    )


def format_timed(requests: Iterable[Request]) -> Iterator[str]:
    """Lines of a trace: times in seconds, the names that are read if none are given."""
    names = DEFAULTS.fields
    for request in requests:
        record: dict[str, Any] = {
            names.time: request.arrival_s,
            names.input: request.input_tokens,
            names.output: request.output_tokens,
        }
        if request.hash_block_tokens:
            record[names.ids] = list(request.prefix_hashes)
        yield json_line(record)


TIMED = TraceFormat(
    read_timed,
    frozenset(),
    "JSON lines with a time, two lengths and perhaps block ids, by the names, unit and size "
    "given as options",
)
