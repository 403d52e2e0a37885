"""Checked access to the fields of one record of a trace."""

import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsv4kv.files import DOCUMENT_BYTES, Unparsable, explain, parse_json
from dsv4kv.traces.files import Defect, TraceLines
from dsv4kv.units import UNITS_PER_SECOND

# Keeps lengths in 32 bits; a larger number is a mistaken unit, not a prompt.
MAX_TOKENS = 2**31 - 1
MOST_S = 10**12
"""Of any time, in seconds: 31,710 years."""
_PER_SECOND = UNITS_PER_SECOND | {"seconds": 1, "milliseconds": 10**3}
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
    """Return a time within ``MOST_S`` of 0, in the file's own unit."""
    value = required(record, name)
    most = MOST_S * _PER_SECOND[unit]
    if type(value) not in {int, float} or not abs(value) <= most:
        raise Defect(
            f"{name} is {reprlib.repr(value)}, expected {unit} from -{most:,} to {most:,}"
        )
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


_DECODER = json.JSONDecoder()
_LONGEST_WORD = 16  # -Infinity, or an escape: an error in it is where it begins
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
    """Yield the objects of one JSON array; memory is an element's, where it is over many lines.

    ``lines.number`` follows the elements, so that a defect names its own line.
    """
    window = _Window(lines)
    separator = window.separator()
    while separator != "]":
        yield _checked_object(window.element())
        separator = window.separator()
        if not separator:
            raise Defect("after this element the JSON array neither continues nor ends")
    if not window.is_empty():
        raise Defect("text follows the end of the JSON array")


class _Window:
    """The text of an array from the line on in which its next element begins."""

    def __init__(self, lines: TraceLines) -> None:
        lines.peek()
        self._lines, self._text = lines, lines.piece()
        self._position = self._text.index("[") + 1
        self._first = self._line = lines.number  # of the text, and at ``counted``
        self._counted = self._read = 0  # read since an element ended

    def separator(self) -> str:
        """Pass a comma or a bracket, if there is one, and the white space around it."""
        found = _SEPARATOR.match(self._text, self._position)
        assert found is not None  # every part of the pattern may be empty
        while found.end() == len(self._text) and self._grow():
            found = _SEPARATOR.match(self._text, self._position)
            assert found is not None
        self._position = found.end()
        return found[1]

    def element(self) -> Any:
        """Pass one element."""
        self._count(self._position)
        self._lines.number = self._line
        while True:
            try:
                value, self._position = _DECODER.raw_decode(self._text, self._position)
            except (ValueError, RecursionError) as error:
                if self._is_cut(error) and self._grow():
                    continue
                reason = explain(error)
                self._lines.number = self._first + reason.line - 1
                raise Defect(str(reason)) from None
            self._read = 0
            return value

    def is_empty(self) -> bool:
        """Whether nothing is left."""
        return self._position == len(self._text)

    def _is_cut(self, error: Exception) -> bool:
        """Whether an element may only go on behind what has been read."""
        return isinstance(error, json.JSONDecodeError) and (
            error.msg.startswith("Unterminated") or error.pos > len(self._text) - _LONGEST_WORD
        )

    def _grow(self) -> bool:
        """Read on, and forget the lines before; whether there was more."""
        begin = self._text.rfind("\n", 0, self._position) + 1
        left = self._text[begin:]
        more = self._lines.piece(len(left))
        self._read += len(more)
        if self._read > DOCUMENT_BYTES:
            raise Defect(f"an element is longer than {DOCUMENT_BYTES >> 20} MiB")
        if more:
            self._count(begin)
            self._first += self._text.count("\n", 0, begin)
            self._text, self._position = left + more, self._position - begin
            self._counted -= begin
        return bool(more)

    def _count(self, position: int) -> None:
        if position > self._counted:
            self._line += self._text.count("\n", self._counted, position)
            self._counted = position


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
