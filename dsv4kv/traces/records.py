"""Checked access to the fields of one record of a trace."""

import json
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsv4kv.reading import Unparsable, explain, parse_json
from dsv4kv.traces.files import Defect, TraceLines

# Keeps lengths in 32 bits; a larger number is a mistaken unit, not a prompt.
MAX_TOKENS = 2**31 - 1
# The largest of signed 64 bits: a run that ends with it would have no end. No id is that.
ODD_ID = 2**63 - 1


def read_tokens(record: Mapping[str, Any], name: str, low: int) -> int:
    """Return a token count of at least ``low``; a bool or a float is a ``Defect``."""
    return checked_tokens(required(record, name), name, low)


def checked_tokens(value: Any, name: str, low: int) -> int:
    """Return ``value`` if it is a whole number from ``low`` to ``MAX_TOKENS``."""
    if type(value) is not int or not low <= value <= MAX_TOKENS:
        raise Defect(
            f"{name} is {reprlib.repr(value)}, "
            f"expected a whole number of tokens from {low} to {MAX_TOKENS:,}"
        )
    return value


def read_time(record: Mapping[str, Any], name: str, unit: str) -> float:
    """Return a finite time, in the file's own unit."""
    value = required(record, name)
    if type(value) not in {int, float} or not _is_finite(value):
        raise Defect(f"{name} is {reprlib.repr(value)}, expected a finite number of {unit}")
    return float(value)


def read_block_ids(record: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return a list of ids as a tuple."""
    return checked_ids(read_numbers(record, name), name)


def read_numbers(record: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return a list of whole numbers as a tuple."""
    value = required(record, name)
    if type(value) is not list or not set(map(type, value)) <= {int}:
        raise Defect(f"{name} is {reprlib.repr(value)}, expected a list of whole numbers")
    return tuple(value)


def checked_ids(ids: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Refuse numbers that are no ids, or that would be taken for others."""
    if not ids:
        return ids
    low, high = min(ids), max(ids)
    if low >= 0 and high < ODD_ID:
        return ids
    wrong = next((i for i in (low, high) if not -(2**63) <= i < 2**64), None)
    if wrong is None and ODD_ID in ids:
        wrong = ODD_ID
    if wrong is None and low < 0 and high > ODD_ID:
        wrong = low  # an unsigned number is next to it
    if wrong is not None:
        raise Defect(
            f"{name} has {reprlib.repr(wrong)}, expected numbers of 64 bits, all unsigned or all "
            "signed, other than 2^63 - 1"
        )
    return ids


def required(record: Mapping[str, Any], name: str) -> Any:
    """Return a field that every record of the format has."""
    if name not in record:
        raise Defect(f"{name} is missing")
    return record[name]


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of a float
        return False


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
            raise Defect("after this element the JSON array neither continues nor ends")
    if position != len(text):
        raise Defect("text follows the end of the JSON array")


def _next_separator(text: str, position: int) -> tuple[str, int]:
    """Return the comma or bracket after ``position``, if any, and where the next element is."""
    match = _SEPARATOR.match(text, position)
    assert match is not None  # every part of the pattern may be empty
    return match[1], match.end()


def _checked_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Defect(f"a JSON {type(value).__name__} where an object is expected")
    return value


def read_counted_ids(
    record: Mapping[str, Any], name: str, input_tokens: int, block_tokens: int
) -> Sequence[int]:
    """Return one id for every block; the last may be partial, or left out if it is.

    Raises:
        Defect: No list of whole numbers, or more or fewer ids than blocks.
    """
    ids = read_block_ids(record, name)
    full, partial = divmod(input_tokens, block_tokens)
    if len(ids) not in {full, full + bool(partial)}:
        raise Defect(
            f"{name} has {len(ids):,} ids, expected {full + bool(partial):,}: one per "
            f"{block_tokens} of {input_tokens:,} tokens, the last may be partial or left out"
        )
    return ids
