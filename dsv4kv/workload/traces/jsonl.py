"""JSON objects of a trace, one per line or in one array."""

import json
import re
from collections.abc import Iterator
from typing import Any

from dsv4kv.reading import Unparsable, explain, parse_json
from dsv4kv.workload.traces.lines import Defect, TraceLines

_SEPARATOR = re.compile(r"[ \t\r\n]*([],]?)[ \t\r\n]*")


def json_records(lines: TraceLines) -> Iterator[dict[str, Any]]:
    """Yield the objects of a trace: one on every line, or all in one array."""
    return json_array(lines) if is_array(lines.peek()) else map(parse_object, lines)


def is_array(line: str) -> bool:
    """Whether a first line begins an array."""
    return line.lstrip().startswith("[")


def json_line(record: dict[str, Any]) -> str:
    """An object as one line, line end included."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"


def parse_object(line: str) -> dict[str, Any]:
    """Parse one line that holds one JSON object."""
    try:
        value = parse_json(line)
    except Unparsable as error:
        cut = (
            "" if line.endswith("\n") else "; the file ends inside this line and may be truncated"
        )
        raise Defect(f"{error}{cut}") from None
    return _checked_object(value)


def json_array(lines: TraceLines) -> Iterator[dict[str, Any]]:
    """Yield the objects of one JSON array, whose text is held in memory as a whole.

    ``lines.number`` follows the elements, so that a defect names its own line.
    """
    lines.peek()
    first = lines.number
    text = lines.rest()
    lines.number, counted = first, 0
    separator, position = _next_separator(text, text.index("[") + 1)
    while separator != "]":
        lines.number += text.count("\n", counted, position)
        counted = position
        try:
            value, end = json.JSONDecoder().raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            reason = explain(error)
            lines.number = first + reason.line - 1
            raise Defect(str(reason)) from None
        yield _checked_object(value)
        separator, position = _next_separator(text, end)
        if not separator:
            raise Defect("after this element the JSON array neither goes on nor ends")
    if position != len(text):
        raise Defect("text follows the end of the JSON array")


def _next_separator(text: str, position: int) -> tuple[str, int]:
    """Return the comma or bracket after ``position``, if any, and where the next element is."""
    match = _SEPARATOR.match(text, position)
    assert match is not None  # every part of the pattern may be empty
    return match[1], match.end()


def _checked_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Defect(f"a JSON {type(value).__name__} stands where an object belongs")
    return value
