"""Serving traces: readers for the published formats, one writer, and what a trace is like.

Every reader streams: memory is one line, whatever the file's size (a JSON array excepted).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dsv4kv.errors import ConfigError
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.azure import read_azure
from dsv4kv.workload.traces.burstgpt import read_burstgpt
from dsv4kv.workload.traces.jsonl import parse_object
from dsv4kv.workload.traces.lines import Defect, TraceLines, open_trace
from dsv4kv.workload.traces.mooncake import read_mooncake
from dsv4kv.workload.traces.native import read_native
from dsv4kv.workload.traces.rows import parse_row
from dsv4kv.workload.traces.sharegpt import INPUT_NAMES, read_sharegpt
from dsv4kv.workload.traces.source import resolve_trace, trace_sha256
from dsv4kv.workload.traces.summary import LengthSummary, TraceSummary, summarize
from dsv4kv.workload.traces.writer import write_trace

__all__ = [
    "FORMATS",
    "LengthSummary",
    "TraceFormat",
    "TraceSummary",
    "detect_format",
    "read_trace",
    "resolve_trace",
    "summarize",
    "trace_sha256",
    "write_trace",
]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How to read a format, and how to know it.

    Attributes:
        read: Yields the requests of an open trace.
        marks: A first line with any of these fields is of this format.
        shape: What a line or header looks like, for error messages.
    """

    read: Callable[[TraceLines], Iterator[Request]]
    marks: frozenset[str]
    shape: str


FORMATS: dict[str, TraceFormat] = {
    "mooncake": TraceFormat(
        read_mooncake,
        frozenset({"hash_ids"}),
        '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}',
    ),
    "azure": TraceFormat(
        read_azure,
        frozenset({"ContextTokens", "GeneratedTokens"}),
        "CSV with TIMESTAMP,ContextTokens,GeneratedTokens",
    ),
    "burstgpt": TraceFormat(
        read_burstgpt,
        frozenset({"Request tokens", "Response tokens"}),
        "CSV with Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    ),
    "sharegpt": TraceFormat(
        read_sharegpt,
        frozenset(INPUT_NAMES),
        '{"prompt_len": tokens, "output_len": tokens}',
    ),
    "dsv4kv": TraceFormat(
        read_native,
        frozenset({"input_tokens", "prefix_hashes"}),
        '{"arrival_s": seconds, "input_tokens": tokens, "output_tokens": tokens}',
    ),
}
"""All formats by name. Where a line has marks of two, the first here is taken."""


def read_trace(source: str | Path, trace_format: str = "auto") -> Iterator[Request]:
    """Return the requests of a trace file or ``builtin:NAME``, in file order, one at a time.

    Raises:
        TraceError: There is no such file (at once), or a line is defective (when it is reached).
        ConfigError: There is no such format.
    """
    if trace_format not in ("auto", *FORMATS):
        raise ConfigError(
            f"{trace_format!r} is not a trace format: take auto, {', '.join(FORMATS)}."
        )
    return _read_requests(resolve_trace(source), trace_format)


def detect_format(path: Path) -> str:
    """Return the name of the format that the file's first line shows.

    Raises:
        TraceError: The line fits none, or cannot be read.
    """
    with open_trace(path) as lines:
        return _detect(lines)


def _read_requests(path: Path, trace_format: str) -> Iterator[Request]:
    with open_trace(path) as lines:
        name = _detect(lines) if trace_format == "auto" else trace_format
        try:
            if not lines.peek():
                raise Defect("the file is empty")
            count = 0
            for count, request in enumerate(FORMATS[name].read(lines), start=1):  # noqa: B007
                yield request
            if not count:
                raise Defect("the trace has no requests")
        except Defect as defect:
            raise Defect(f"{defect}. A {name} trace is {FORMATS[name].shape}") from None


def _detect(lines: TraceLines) -> str:
    line = lines.peek()
    if not line:
        raise Defect("the file is empty")
    if line.lstrip().startswith("["):
        return "sharegpt"  # the only format that comes as an array
    names = parse_object(line) if line.lstrip().startswith("{") else parse_row(line)
    for name, trace_format in FORMATS.items():
        if trace_format.marks.intersection(names):
            return name
    shapes = "; ".join(f"{name}: {entry.shape}" for name, entry in FORMATS.items())
    raise Defect(f"the first line is of no known format. Known are {shapes}")
