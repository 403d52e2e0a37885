"""Formats of traces, read and written: one request a line, except ``weka``.

``mooncake`` (kvcache-ai/Mooncake): JSON lines, times in milliseconds; each of the ``hash_ids``
stands for 512 tokens and their history, the last may be partial.

``mooncake-delta``: later turns of a session carry only what is new. A line has the fields of a
Mooncake line, and ``session_id``. ``input_length`` and ``hash_ids`` of a later turn count from the
end of its turn before; its time may be a ``delay`` in milliseconds after that turn's. AIPerf's
multi-turn traces are such: known by a line with ``delay`` instead of ``timestamp``.

``bailian`` (alibaba-edu/qwen-bailian-usagetraces-anon): times in seconds, ids of 16 tokens.

``timed``: the same fields by any names, in any unit, with ids of any size.

``dsv4kv``: the toolkit's own, all a ``Request`` knows; the last three fields are optional, and ids
that come in long runs are written as ``prefix_runs``: first id and count of every run.

    {"arrival_s":0.5,"input_tokens":130,"output_tokens":9,"prefix_hashes":[4,7],
     "hash_block_tokens":128,"session":3,"answer_s":1.5}

``azure`` (Azure/AzurePublicDataset, 2023 and 2024): CSV without blocks. Times are wall clock with
up to nine fractional digits; 2024 adds a UTC offset. Without an offset a time is read as UTC.

``burstgpt``: CSV without blocks, times in seconds.

``sharegpt``: prompt and output lengths, JSON lines or one JSON array. Lengths go by several names;
a list of token ids stands for its length. ``arrival_s`` is optional (0: all wait from the start).

``weka`` (callanjfox/kv-cache-tester): agentic traces, one JSON file per conversation. ``hash_ids``
stand for full blocks. Requests of type ``subagent`` nest requests of their own, whose times count
from the sub-agent's start. A folder is merged on one clock: conversation k, by file name, starts
k × stagger seconds after the first.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.errors import TraceError
from dsv4kv.traces import files as tf
from dsv4kv.traces.request import IdRuns, Request, signed

Reader = Callable[[tf.TraceLines, tf.ReadOptions], Iterator[Request]]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How to read a format, and how to know it."""

    read: Reader  # yields the requests of an open trace
    # A first line with any of these fields is of this format; none if it must be named
    marks: frozenset[str]
    shape: str  # what a line or header looks like, for error messages


BLOCK_TOKENS = 512
"""Tokens of a Mooncake id."""


def _read_rows(
    lines: tf.TraceLines,
    names: tf.TimedFields,
    block_tokens: int,
    unit: str = "seconds",
    *,
    partial: bool = False,
) -> Iterator[Request]:
    """Yield the requests of JSON lines; ids of ``block_tokens`` tokens, 0 where they have none."""
    for record in tf.json_records(lines):
        tokens = tf.read_tokens(record, names.input, low=1)
        ids: Sequence[int] = ()
        if block_tokens:
            ids = tf.read_counted_ids(record, names.ids, tokens, block_tokens, partial=partial)
        elif names.ids in record:
            raise tf.Defect(f"{names.ids} is given, but not the tokens per id (--id-tokens)")
        arrival_s = tf.read_time(record, names.time, unit)
        output_tokens = tf.read_tokens(record, names.output, low=0)
        yield Request(arrival_s, tokens, output_tokens, ids, block_tokens)


MOONCAKE = TraceFormat(
    lambda lines, _: _read_rows(
        lines, tf.DEFAULTS.fields, BLOCK_TOKENS, "milliseconds", partial=True
    ),
    frozenset({"hash_ids"}),
    '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}',
)
BAILIAN = TraceFormat(
    lambda lines, _: _read_rows(lines, tf.DEFAULTS.fields, 16),
    frozenset({"parent_chat_id"}),
    '{"chat_id": …, "parent_chat_id": …, "timestamp": s, "input_length": tokens, '
    '"output_length": tokens, "hash_ids": [...]}',
)
TIMED = TraceFormat(
    lambda lines, given: _read_rows(lines, given.fields, given.id_tokens or 0, given.time_unit),
    frozenset(),
    "JSON lines with a time, two lengths and perhaps block ids, by the names, unit and size "
    "given as options",
)


def in_milliseconds(seconds: float) -> int | float:
    """A time that is read back as the same one, whole where it can be; else the nearest."""
    value = seconds * 1000
    near = (round(value), value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf))
    return next((one for one in near if one / 1000 == seconds), value)


def format_mooncake(requests: Iterable[Request]) -> Iterator[str]:
    """Lines of a trace; raises ``TraceError`` if a request has no ids, or ids of other blocks."""
    for number, request in enumerate(requests):
        blocks = -(-request.input_tokens // BLOCK_TOKENS)
        if request.hash_block_tokens != BLOCK_TOKENS or len(request.prefix_hashes) != blocks:
            size, count = request.hash_block_tokens, len(request.prefix_hashes)
            has = f"{count:,} ids of {size:,} tokens" if size else "no ids"
            raise TraceError(
                f"a mooncake trace has an id for every {BLOCK_TOKENS} tokens of a prompt, the "
                f"last may be partial, and request {number} has {has} for "
                f"{request.input_tokens:,}: take another format."
            )
        if blocks > _MOST_LISTED:
            raise TraceError(
                f"a prompt of {request.input_tokens:,} tokens has {blocks:,} ids, and "
                f"{_MOST_LISTED:,} at most are listed one by one: take the format dsv4kv."
            )
        record = {
            "timestamp": in_milliseconds(request.arrival_s),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": list(request.prefix_hashes),
        }
        session = {} if request.session is None else {"session_id": f"{request.session}"}
        yield tf.json_line(record | session)


_START = Request(0.0, 0, 0, (), BLOCK_TOKENS)
_MOST_LISTED = 2**23  # ids of a prompt; a line of more is longer than any that is read
_MOST_HELD = 2**26  # ids of all turns, each with those before it: 512 MiB


def _read_mooncake_delta(lines: tf.TraceLines, _: tf.ReadOptions) -> Iterator[Request]:
    sessions: dict[str, Request] = {}
    turns, held = [], 0
    for record in tf.json_records(lines):
        session = str(tf.required(record, "session_id"))
        sessions[session] = turn = _extend(sessions.get(session), record)
        turns.append(turn)
        held += len(turn.prefix_hashes)
        if held > _MOST_HELD:
            raise tf.Defect(
                f"the prompts of all turns have over {_MOST_HELD:,} ids: split it by session"
            )
    yield from sorted(turns, key=lambda turn: turn.arrival_s)


def _extend(before: Request | None, record: dict[str, Any]) -> Request:
    if before is not None and "timestamp" not in record:
        arrival_s = before.arrival_s + tf.read_time(record, "delay", "milliseconds")
    else:
        arrival_s = tf.read_time(record, "timestamp", "milliseconds")
    before = before or _START
    input_tokens = before.input_tokens + tf.read_tokens(record, "input_length", low=1)
    if input_tokens > tf.MAX_TOKENS:
        raise tf.Defect(f"the session's prompt has grown to {input_tokens:,} tokens")
    output_tokens = tf.read_tokens(record, "output_length", low=0)
    new = tf.checked_ids(tf.read_numbers(record, "hash_ids"), "hash_ids")
    earlier, full = tuple(before.prefix_hashes), before.input_tokens // BLOCK_TOKENS
    blocks = -(-input_tokens // BLOCK_TOKENS)
    # a partial last block of the turn before has a new id, or keeps its own
    for kept in (earlier[:full], earlier):
        if len(kept) + len(new) == blocks:
            return Request(arrival_s, input_tokens, output_tokens, kept + new, BLOCK_TOKENS)
    raise tf.Defect(
        f"hash_ids has {len(new):,} ids, expected {blocks - full:,}: the turn makes the session's "
        f"prompt {blocks:,} blocks of {BLOCK_TOKENS} tokens, and it had {full:,} of them"
    )


MOONCAKE_DELTA = TraceFormat(
    _read_mooncake_delta,
    frozenset(),
    '{"session_id": …, "timestamp" or "delay": ms, "input_length": new tokens, '
    '"output_length": tokens, "hash_ids": [new ids]}',
)


def format_native(requests: Iterable[Request]) -> Iterator[str]:
    """Lines of a trace."""
    for request in requests:
        record: dict[str, Any] = {
            "arrival_s": request.arrival_s,
            "input_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
        }
        if request.hash_block_tokens:
            ids = request.prefix_hashes
            if isinstance(ids, IdRuns):
                record["prefix_runs"] = np.stack([ids.starts, ids.counts], axis=1).ravel().tolist()
            else:
                record["prefix_hashes"] = list(ids)
            record["hash_block_tokens"] = request.hash_block_tokens
        turn = {"session": request.session, "answer_s": request.answer_s}
        record |= {name: value for name, value in turn.items() if value is not None}
        yield tf.json_line(record)


def _read_native(lines: tf.TraceLines, _: tf.ReadOptions) -> Iterator[Request]:
    earlier = 0
    for record in tf.json_records(lines):
        input_tokens = tf.read_tokens(record, "input_tokens", low=1)
        listed = {"prefix_hashes", "prefix_runs", "hash_block_tokens"} & record.keys()
        block_tokens = tf.read_tokens(record, "hash_block_tokens", low=1) if listed else 0
        session = record.get("session")  # what others call so may be anything
        answer_s = record.get("answer_s")
        hashes: Sequence[int] = ()
        if "prefix_runs" in record:
            hashes = _read_runs(record, input_tokens, block_tokens)
        elif listed:
            hashes = tf.read_counted_ids(
                {"prefix_hashes": []} | record, "prefix_hashes", input_tokens, block_tokens
            )
        earlier = earlier or block_tokens
        if block_tokens not in {0, earlier}:
            raise tf.Defect(
                f"hash_block_tokens is {block_tokens}, earlier lines have "
                f"{earlier}: a trace has one block size"
            )
        yield Request(
            arrival_s=tf.read_time(record, "arrival_s", "seconds"),
            input_tokens=input_tokens,
            output_tokens=tf.read_tokens(record, "output_tokens", low=0),
            prefix_hashes=hashes,
            hash_block_tokens=block_tokens,
            session=session if type(session) is int else None,
            answer_s=answer_s if type(answer_s) is float and 0 <= answer_s < math.inf else None,
        )


def _read_runs(record: dict[str, Any], input_tokens: int, block_tokens: int) -> IdRuns:
    numbers = tf.read_numbers(record, "prefix_runs")
    full, partial = divmod(input_tokens, block_tokens)
    starts, counts = numbers[::2], numbers[1::2]
    if (
        len(numbers) % 2
        or min(counts, default=1) < 1
        or sum(counts) not in {full, full + bool(partial)}
    ):
        raise tf.Defect(
            "prefix_runs is no list of first id, count, first id, count, … of the "
            f"{full + bool(partial):,} blocks of {block_tokens} tokens"
        )
    runs = list(zip(starts, counts, strict=True))
    ends = (start + count - 1 for start, count in runs)
    odd = (tf.ODD_ID for start, count in runs if start <= tf.ODD_ID < start + count)
    tf.checked_ids((*starts, *ends, *odd), "prefix_runs")  # then all ids between are ids
    return IdRuns(np.array(signed(starts)), np.array(counts, np.int64))


NATIVE = TraceFormat(
    _read_native,
    frozenset({"input_tokens", "prefix_hashes", "prefix_runs"}),
    '{"arrival_s": seconds, "input_tokens": tokens, "output_tokens": tokens}',
)


_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")


def parse_row(line: str) -> list[str]:
    """Split one line into its fields, without the spaces around them."""
    try:
        return [field.strip() for field in next(csv.reader([line], strict=True), [])]
    except csv.Error as error:
        raise tf.Defect(f"broken CSV ({error})") from None


def _read_csv(
    lines: tf.TraceLines,
    columns: tuple[str, str, str],
    parse_time: Callable[[str], float],
    per_second: float,
    failed: str = "",
) -> Iterator[Request]:
    """``columns``: time, prompt, output; ``failed``: what is wrong with a prompt of 0 tokens."""
    lines.peek()
    header, first = parse_row(next(lines)), None
    if missing := [name for name in columns if name not in header]:
        raise tf.Defect(f"the header has no column {' or '.join(missing)}")
    try:
        for fields in csv.reader(lines, strict=True):
            if len(fields) <= 1 and not "".join(fields).strip():
                continue  # a blank line
            if len(fields) != len(header):
                raise tf.Defect(f"the row has {len(fields)} fields, the header {len(header)}")
            row = dict(zip(header, map(str.strip, fields), strict=True))
            moment = parse_time(row[columns[0]])
            first = moment if first is None else first
            if failed and row[columns[1]] == "0":
                raise tf.Defect(failed)
            tokens_in = _row_tokens(row, columns[1], low=1)
            tokens_out = _row_tokens(row, columns[2], low=0)
            yield Request((moment - first) / per_second, tokens_in, tokens_out)
    except csv.Error as error:
        raise tf.Defect(f"broken CSV ({error})") from None


def _row_tokens(row: dict[str, str], name: str, low: int) -> int:
    value = int(row[name]) if _WHOLE_NUMBER.fullmatch(row[name]) else row[name]
    return tf.checked_tokens(value, name, low)


_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def _parse_time_ns(text: str) -> int:
    """Nanoseconds since 1970; datetime alone would drop the seventh fractional digit."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + (match[3] or ""))
    except ValueError:
        raise tf.Defect(
            f"TIMESTAMP is {text[:40]!r}, expected a time such as 2023-11-16 18:17:03.9799600"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int((match[2] or "").ljust(9, "0"))


def _parse_time_s(text: str) -> float:
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not abs(time_s) <= tf.MOST_S:
        raise tf.Defect(f"Timestamp is {text[:40]!r}, expected a number of seconds")
    return time_s


AZURE = TraceFormat(
    lambda lines, _: _read_csv(
        lines, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _parse_time_ns, 1e9
    ),
    frozenset({"ContextTokens", "GeneratedTokens"}),
    "CSV with TIMESTAMP,ContextTokens,GeneratedTokens",
)
BURSTGPT = TraceFormat(
    lambda lines, _: _read_csv(
        lines,
        ("Timestamp", "Request tokens", "Response tokens"),
        _parse_time_s,
        1.0,
        failed="Request tokens is 0: a failed request, which never held cache; "
        "take the BurstGPT_without_fails files of the same release",
    ),
    frozenset({"Request tokens", "Response tokens"}),
    "CSV with Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
)


INPUT_NAMES = ("prompt_len", "input_length", "prompt_tokens", "prompt_token_ids", "input_ids")
OUTPUT_NAMES = (
    *("output_len", "output_length", "completion_tokens"),
    *("output_token_ids", "output_ids"),
)


def _read_sharegpt(lines: tf.TraceLines, _: tf.ReadOptions) -> Iterator[Request]:
    for record in tf.json_records(lines):
        yield Request(
            arrival_s=tf.read_time(record, "arrival_s", "seconds")
            if "arrival_s" in record
            else 0.0,
            input_tokens=_read_length(record, INPUT_NAMES, low=1),
            output_tokens=_read_length(record, OUTPUT_NAMES, low=0),
        )


def _read_length(record: dict[str, Any], names: Sequence[str], low: int) -> int:
    name = next((name for name in names if name in record), None)
    if name is None:
        raise tf.Defect(f"one of {', '.join(names)} is missing")
    value = record[name]
    if type(value) is list and set(map(type, value)) <= {int}:
        value = len(value)
    return tf.checked_tokens(value, name, low)


SHAREGPT = TraceFormat(
    _read_sharegpt, frozenset(INPUT_NAMES), '{"prompt_len": tokens, "output_len": tokens}'
)


ID_BOUND = 2**40
"""Weka's ids are below it, so ids of many conversations can be kept apart in 64 bits."""
_SUFFIXES = (".json", ".json.gz")
_MAX_NESTING = 64

Placed = tuple[str, Request]
"""A request, and where in its file it is."""


def conversation_files(folder: Path) -> list[Path]:
    """The files of a folder that may be conversations, in order of their names."""
    files = (path for path in folder.iterdir() if path.name.endswith(_SUFFIXES))
    return sorted(files, key=attrgetter("name"))  # paths take ten times as long to compare


def read_weka_folder(folder: Path, options: tf.ReadOptions) -> Iterator[Placed]:
    """Yield all conversations' requests in order of arrival; all are held; ``TraceError``."""
    placed: list[Placed] = []
    sizes: dict[int, Path] = {}
    files = conversation_files(folder)
    try:
        read = [0, *accumulate(path.stat().st_size for path in files)]
    except OSError as error:
        raise TraceError(f"{error.filename}: cannot be read ({error.strerror}).") from None
    for number, path in enumerate(files):
        with tf.open_trace(path) as lines:
            found = _read_conversation(lines, number, number * options.stagger_s)
        placed += [(f"{path}: {place}", request) for place, request in found]
        if found:
            sizes.setdefault(found[0][1].hash_block_tokens, path)
        if options.watch:
            options.watch(read[number + 1], read[-1])
    if len(sizes) > 1:
        (one, first), (two, second), *_ = sizes.items()
        raise TraceError(
            f"{second}: block_size is {two}, {first} has {one}: a trace has one block size."
        )
    if not placed:
        raise TraceError(f"{folder}: no conversation of the folder has a request.")
    yield from sorted(placed, key=lambda item: item[1].arrival_s)


def _read_weka(lines: tf.TraceLines, _: tf.ReadOptions) -> Iterator[Request]:
    placed = _read_conversation(lines, 0, 0.0)
    yield from sorted((request for _, request in placed), key=lambda each: each.arrival_s)


def _read_conversation(lines: tf.TraceLines, number: int, begin_s: float) -> list[Placed]:
    text = lines.rest()
    lines.number = 1  # one document: places inside it say more than its lines
    conversation = tf.parse_object(text)
    size = tf.read_tokens(conversation, "block_size", low=1)
    scope = tf.required(conversation, "hash_id_scope")
    if scope not in ("local", "global"):
        raise tf.Defect(f"hash_id_scope is {scope!r}, expected local or global")
    # local ids are moved to where no other conversation has any
    offset = (number + 1) * ID_BOUND if scope == "local" else 0
    found: list[Placed] = []

    def read_level(level: dict[str, Any], place: str, start_s: float) -> None:
        requests = tf.required(level, "requests")
        if not isinstance(requests, list) or place.count(".") > _MAX_NESTING:
            raise tf.Defect(
                f"{place}requests is no list, or nested more than {_MAX_NESTING} times"
            )
        for index, record in enumerate(requests):
            here = f"{place}requests[{index}]"
            try:
                if not isinstance(record, dict):
                    raise tf.Defect("an object is expected")
                time_s = start_s + tf.read_time(record, "t", "seconds")
                if record.get("type") != "subagent":
                    found.append((here, _read_weka_request(record, time_s, size, offset, number)))
            except tf.Defect as defect:
                raise tf.Defect(f"{here}: {defect}") from None
            if record.get("type") == "subagent":
                read_level(record, f"{here}.", time_s)

    read_level(conversation, "", begin_s)
    return found


def _read_weka_request(
    record: dict[str, Any], time_s: float, size: int, offset: int, session: int
) -> Request:
    input_tokens, value = tf.read_tokens(record, "in", low=1), tf.required(record, "hash_ids")
    took_s, is_list, ids = record.get("api_time", -1), type(value) is list, None
    with suppress(TypeError, OverflowError):
        ids = IdRuns.of(value) if is_list else None
    # IdRuns takes true and false for 1 and 0; types of all ids take as long as reading the rest
    is_plain = ids is not None and (not len(ids) or ids.starts.min() > 1)
    if not is_plain and not (is_list and set(map(type, value)) <= {int}):
        raise tf.Defect("hash_ids is no list of whole numbers")
    if ids is None or not ((ids.starts >= 0) & (ids.counts <= ID_BOUND - ids.starts)).all():
        raise tf.Defect(f"hash_ids go from {min(value)} to {max(value)}, expected 0 to 2^40")
    is_known = type(took_s) in (int, float) and 0 <= took_s <= tf.MOST_S
    if len(ids) != input_tokens // size:
        raise tf.Defect(
            f"hash_ids has {len(ids):,} ids, expected {input_tokens // size:,}: one per full "
            f"block of {size} of {input_tokens:,} tokens"
        )
    return Request(
        arrival_s=time_s,
        input_tokens=input_tokens,
        output_tokens=tf.read_tokens(record, "out", low=0),
        prefix_hashes=ids.moved(offset),
        hash_block_tokens=size,
        session=session,
        answer_s=float(took_s) if is_known else None,
    )


WEKA = TraceFormat(
    _read_weka,
    frozenset({"hash_id_scope"}),
    'one conversation, {"block_size": tokens, "hash_id_scope": "local" or "global", '
    '"requests": [{"t": s, "type": …, "in": tokens, "out": tokens, "hash_ids": [...]}]}, or a '
    "folder of them",
)
