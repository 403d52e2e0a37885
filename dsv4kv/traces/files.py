"""Trace files: lines of plain or gzip text, checked fields of their records, and writing one."""

import json
import os
import re
import reprlib
import zlib
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json

from dsv4kv.errors import TraceError
from dsv4kv.files import (
    DOCUMENT_BYTES,
    Unparsable,
    check_parts,
    explain,
    open_regular,
    parse_json,
    unpack,
)
from dsv4kv.units import UNITS_PER_SECOND

# A request of 1M tokens listed token by token is below 10 MB; a "line" beyond this is no trace.
# Nor is so much of nothing: blank lines one after the other count as one, each as 64 bytes or
# more, for gzip packs a thousand of them into one byte.
_MAX_LINE_BYTES = 2**26
_BLANK_BYTES = 2**6
_PIECE_BYTES = 2**20  # of a document that is read in parts


Watch = Callable[[int, int], object]
"""Called with how many are done of how many, of bytes or of anything else."""
_WATCHED_LINES = 256  # between two words to who watches


class Defect(ValueError):
    """What is wrong with the line just read: a sentence without place and full stop."""


class TraceLines:
    """Iterator over the lines of a trace that are not blank, line ends kept.

    Raises ``Defect`` for what is not UTF-8, damaged or truncated gzip, an absurdly long line.
    """

    def __init__(self, file: BufferedReader, watch: Watch | None = None) -> None:
        """``watch`` is called with the bytes read of the file, as they are on disk."""
        self._raw, self._size, self._watch = file, os.fstat(file.fileno()).st_size, watch
        self._file = unpack(file)
        self._ahead = ""  # a line that has been peeked at
        self._decoder = getincrementaldecoder("utf-8")()
        self.number = 0  # of the last line, from 1

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self.peek()
        if not line:
            raise StopIteration
        self._ahead = ""
        return line

    def peek(self) -> str:
        """Return the next line without consuming it; ``""`` at the end."""
        blank = 0
        while not self._ahead:
            self.number += 1
            if not self.number % _WATCHED_LINES:
                self._report_position()
            line = _read(self._file.readline, _MAX_LINE_BYTES + 1)
            if not line:
                break
            if len(line) + blank > _MAX_LINE_BYTES:
                limit = f"longer than {_MAX_LINE_BYTES // 2**20} MiB"
                raise Defect(f"the line is {limit}, or follows too many blank ones")
            blank += max(len(line), _BLANK_BYTES)
            if self.number == 1:
                line = line.removeprefix(BOM_UTF8)
            if not line.isspace():
                self._ahead = _decode(line)
        return self._ahead

    def rest(self) -> str:
        """Return all that is left, of one document."""
        begin, self._ahead = self._ahead, ""
        text = begin + _decode(_read(self._file.read, DOCUMENT_BYTES + 1))
        if len(text) > DOCUMENT_BYTES:
            raise Defect(
                f"the document is larger than {DOCUMENT_BYTES // 2**20} MiB, and is read as a "
                "whole: write one request a line"
            )
        return text

    def piece(self, least_bytes: int = 0) -> str:
        """Return what comes next of one document, lines or parts of them; ``""`` at the end."""
        if self._ahead:
            line, self._ahead = self._ahead, ""
            return line
        self._report_position()
        content = _read(self._file.read, max(least_bytes, _PIECE_BYTES))
        return _decode(content, lambda part: self._decoder.decode(part, final=not part))

    def _report_position(self) -> None:
        if self._watch:
            self._watch(self._raw.tell(), self._size)


def _read(read: Callable[[int], bytes], most_bytes: int) -> bytes:
    try:
        return read(most_bytes)
    except EOFError:
        raise Defect("the gzip data ends early: the file is truncated") from None
    except (OSError, zlib.error) as error:
        raise Defect(f"the file cannot be read ({error})") from None


def _decode(content: bytes, decode: Callable[[bytes], str] = bytes.decode) -> str:
    try:
        return decode(content)
    except UnicodeDecodeError:
        raise Defect("this is not UTF-8 text, neither plain nor gzip") from None


@contextmanager
def open_trace(path: Path, watch: Watch | None = None) -> Iterator[TraceLines]:
    """Open a trace; a ``Defect`` inside the block causes a ``TraceError`` with its line."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({error.strerror}).") from None
    with file:
        lines = TraceLines(file, watch)
        try:
            yield lines
        except Defect as defect:
            raise TraceError(f"{path}:{lines.number}: {defect}.") from defect


@dataclass(frozen=True, slots=True)
class TimedFields:
    """Names of the fields of a ``timed`` trace; ``ids`` may be missing from its lines."""

    time: str = "timestamp"  # arrival
    input: str = "input_length"  # prompt length in tokens
    output: str = "output_length"  # generated length in tokens
    ids: str = "hash_ids"  # block ids of the prompt


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the formats that need them."""

    fields: TimedFields = TimedFields()  # names in a ``timed`` trace
    time_unit: str = "s"  # unit of its arrivals
    id_tokens: int | None = None  # tokens that one of its ids stands for; None if it has no ids
    # Seconds from the start of one conversation of a ``weka`` folder to the next
    stagger_s: float = 0.0
    # Take requests that arrive before the one above them: their times do not count, or they are
    # yet to be sorted
    any_order: bool = False
    watch: Watch | None = None  # hears how many bytes of how many have been read
    stores: bool = False  # take a trace of what a server stored, which has no hit rate


DEFAULTS = ReadOptions()


# Keeps lengths in 32 bits; a larger number is a mistaken unit, not a prompt.
MAX_TOKENS = 2**31 - 1
MOST_S = 10**12
"""Of any time, in seconds: 31,710 years."""
_PER_SECOND = UNITS_PER_SECOND | {"seconds": 1, "milliseconds": 10**3}
# The largest of signed 64 bits: a run that ends with it would have no end. No id is that.
ODD_ID = 2**63 - 1


def read_tokens(record: Mapping[str, Any], name: str, low: int) -> int:
    """A token count from ``low`` to ``MAX_TOKENS``; a bool or a float is a ``Defect``."""
    return checked_tokens(required(record, name), name, low)


def checked_tokens(value: Any, name: str, low: int) -> int:
    """The value, if it is such a count."""
    if type(value) is not int or not low <= value <= MAX_TOKENS:
        raise Defect(
            f"{name} is {reprlib.repr(value)}, "
            f"expected a whole number of tokens from {low} to {MAX_TOKENS:,}"
        )
    return value


def read_time(record: Mapping[str, Any], name: str, unit: str) -> float:
    """A time within ``MOST_S`` of 0, in s; ``unit`` is the file's."""
    value, per_second = required(record, name), _PER_SECOND[unit]
    most = MOST_S * per_second
    if type(value) not in {int, float} or not abs(value) <= most:
        raise Defect(
            f"{name} is {reprlib.repr(value)}, expected {unit} from -{most:,} to {most:,}"
        )
    return float(value) / per_second


def read_numbers(record: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A list of whole numbers."""
    value = required(record, name)
    if type(value) is not list or not set(map(type, value)) <= {int}:
        raise Defect(f"{name} is {reprlib.repr(value)}, expected a list of whole numbers")
    return tuple(value)


def checked_ids(ids: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Refuse numbers that are no ids, or that would be taken for others."""
    high = max(ids, default=0)
    allowed = range(2**64) if high > ODD_ID else range(-(2**63), ODD_ID)
    is_odd = high >= ODD_ID and ODD_ID in ids
    if min(ids, default=0) in allowed and high in allowed and not is_odd:
        return ids
    wrong = next(number for number in ids if number not in allowed or number == ODD_ID)
    raise Defect(
        f"{name} has {reprlib.repr(wrong)}, expected numbers of 64 bits, all unsigned or all "
        "signed, other than 2^63 - 1"
    )


def required(record: Mapping[str, Any], name: str) -> Any:
    """A field that every record of the format has."""
    if name not in record:
        raise Defect(f"{name} is missing")
    return record[name]


_DECODER = json.JSONDecoder()
_LONGEST_WORD = 16  # -Infinity, or an escape: an error in it is where it begins
_SEPARATOR = re.compile(r"[ \t\r\n]*([],]?)[ \t\r\n]*")


def json_records(lines: TraceLines) -> Iterator[dict[str, Any]]:
    """Yield the objects of a trace: one on every line, all in one array, or one over many lines.

    The last is known by its first line, which has a brace only.
    """
    first = lines.peek().strip()
    if first.startswith("["):
        yield from json_array(lines)
    elif first == "{":
        yield parse_object(lines.rest())
    else:
        yield from map(parse_object, lines)


def json_line(record: dict[str, Any]) -> str:
    """An object as one line, line end included."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"


def parse_object(line: str) -> dict[str, Any]:
    """Parse one line that holds one JSON object."""
    try:
        check_parts(line)
        value = from_json(line)
    except ValueError:  # json is slower, but takes half characters, and says what is wrong
        try:
            value = parse_json(line)
        except Unparsable as error:
            whole = line.endswith("\n")
            cut = "" if whole else "; the file ends inside this line and may be truncated"
            raise Defect(f"{error}{cut}") from None
    return _checked_object(value)


def json_array(lines: TraceLines) -> Iterator[dict[str, Any]]:
    """Yield the objects of one JSON array; memory is an element's, where it is over many lines.

    ``lines.number`` follows the elements, so that a defect names its own line.
    """
    try:
        array = _Array(lines)
        separator = array.separator()
        while separator != "]":
            value, end = array.element()
            yield _checked_object(value)
            array.move(end)
            separator = array.separator()
            if not separator:
                raise Defect("after this element the JSON array neither continues nor ends")
    except Unparsable as error:
        raise Defect(str(error)) from None
    if array.rest:
        raise Defect("text follows the end of the JSON array")


class _Array:
    """The text of an array around the place that has been reached, from a line's begin on."""

    def __init__(self, lines: TraceLines) -> None:
        lines.peek()
        self._lines, self._text, self._place = lines, lines.piece(), 0
        check_parts(self._text)
        self._line = lines.number  # of the place
        self.move(self._text.index("[") + 1)

    @property
    def rest(self) -> str:
        return self._text[self._place :]

    def move(self, place: int) -> None:
        self._line += self._text.count("\n", self._place, place)
        self._place = place

    def separator(self) -> str:
        """Pass a comma or a bracket, if there is one, and the white space around it."""
        while True:
            found = _SEPARATOR.match(self._text, self._place)
            assert found is not None  # every part of the pattern may be empty
            if found.end() < len(self._text) or not self._grow():
                break
        self.move(found.end())
        return found[1]

    def element(self) -> tuple[Any, int]:
        """The value that begins here, and where it ends."""
        self._lines.number = self._line
        while True:
            try:
                return _DECODER.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                near_end = error.pos > len(self._text) - _LONGEST_WORD
                if (error.msg.startswith("Unterminated") or near_end) and self._grow():
                    continue  # the element went on in text that had not been read
                self._lines.number += self._text.count("\n", self._place, error.pos)
                raise explain(error) from None
            except (ValueError, RecursionError) as error:
                raise explain(error) from None

    def _grow(self) -> bool:
        """Read on, and forget the lines before; whether there was more."""
        if len(self._text) - self._place > DOCUMENT_BYTES:
            raise Defect(f"an element is longer than {DOCUMENT_BYTES >> 20} MiB")
        check_parts(self.rest)
        begin = self._text.rfind("\n", 0, self._place) + 1
        left = self._text[begin:]
        more = self._lines.piece(len(left))
        if more:
            self._text, self._place = left + more, self._place - begin
        return bool(more)


def _checked_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Defect(f"a JSON {type(value).__name__} where an object is expected")
    return value


def read_counted_ids(
    record: Mapping[str, Any],
    name: str,
    input_tokens: int,
    block_tokens: int,
    *,
    partial: bool = False,
) -> Sequence[int]:
    """Return one id for every block; a partial last one may be missing unless ``partial``."""
    ids = checked_ids(read_numbers(record, name), name)
    blocks = -(-input_tokens // block_tokens)
    if len(ids) != blocks and (partial or len(ids) != input_tokens // block_tokens):
        raise Defect(
            f"{name} has {len(ids):,} ids, expected {blocks:,}: one per {block_tokens} of "
            f"{input_tokens:,} tokens, the last may be partial{'' if partial else ' or omitted'}"
        )
    return ids
