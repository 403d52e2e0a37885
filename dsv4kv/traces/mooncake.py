"""Mooncake traces (kvcache-ai/Mooncake): one JSON object per request, times in milliseconds.

Each of the ``hash_ids`` stands for 512 tokens and their history; the last may be partial.

Mooncake traces of sessions whose later turns carry only what is new. A line has the fields of a
Mooncake line, and ``session_id``. ``input_length`` and ``hash_ids`` of a later turn of a session
count from the end of its turn before; its time may be a ``delay`` in milliseconds after that
turn's instead of a ``timestamp``.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dsv4kv.errors import TraceError
from dsv4kv.traces.batch import LineShape
from dsv4kv.traces.files import Defect, TraceLines
from dsv4kv.traces.format import TraceFormat, plain
from dsv4kv.traces.records import (
    MAX_TOKENS,
    json_line,
    json_records,
    read_block_ids,
    read_time,
    read_tokens,
    required,
)
from dsv4kv.traces.request import Request
from dsv4kv.traces.runs import Sessions, full_blocks


def in_units(seconds: float, per_second: int) -> int | float:
    """A time that is the same number of seconds when it is read back, whole where it can be.

    Where no float is, it is the nearest.
    """
    value = seconds * per_second
    near = (round(value), value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf))
    return next((one for one in near if one / per_second == seconds), value)


BLOCK_TOKENS = 512
SHAPE = LineShape(
    "timestamp", 1e3, "input_length", "output_length", "hash_ids", BLOCK_TOKENS, partial=True
)


def read_mooncake(lines: TraceLines) -> Iterator[Request]:
    """Yield the requests; other fields of a line are left alone."""
    for record in json_records(lines):
        input_tokens = read_tokens(record, "input_length", low=1)
        hash_ids = read_block_ids(record, "hash_ids")
        blocks = -(-input_tokens // BLOCK_TOKENS)
        if len(hash_ids) != blocks:
            raise Defect(
                f"hash_ids has {len(hash_ids):,} ids, expected {blocks:,}: "
                f"one per {BLOCK_TOKENS} of {input_tokens:,} tokens, the last may be partial"
            )
        yield Request(
            arrival_s=read_time(record, "timestamp", "milliseconds") / 1e3,
            input_tokens=input_tokens,
            output_tokens=read_tokens(record, "output_length", low=0),
            prefix_hashes=hash_ids,
            hash_block_tokens=BLOCK_TOKENS,
        )


def format_mooncake(requests: Iterable[Request]) -> Iterator[str]:
    """Lines of a trace.

    Raises:
        TraceError: A request's ids are not those of this format.
    """
    for number, request in enumerate(requests):
        check_mooncake(number, request)
        known = request.session is not None
        yield format_line(request, 0, **({"session_id": f"{request.session}"} if known else {}))


def check_mooncake(number: int, request: Request) -> None:
    """Refuse a request, by its number in the trace, that the format cannot express."""
    blocks = -(-request.input_tokens // BLOCK_TOKENS)
    if request.hash_block_tokens != BLOCK_TOKENS or len(request.prefix_hashes) != blocks:
        size, count = request.hash_block_tokens, len(request.prefix_hashes)
        has = f"{count:,} ids of {size:,} tokens" if size else "no ids"
        raise TraceError(
            f"a mooncake trace has an id for every {BLOCK_TOKENS} tokens of a prompt, the last "
            f"may be partial, and request {number} has {has} for {request.input_tokens:,}: take "
            "another format."
        )


def format_line(request: Request, first: int = 0, **others: Any) -> str:
    """One line with the ids from ``first`` on, and other fields as they are given."""
    record = {
        "timestamp": in_units(request.arrival_s, 1000),
        "input_length": request.input_tokens,
        "output_length": request.output_tokens,
        "hash_ids": list(request.prefix_hashes)[first:],
    }
    return json_line(record | others)


_START = Request(0.0, 0, 0, (), BLOCK_TOKENS)


def read_mooncake_delta(lines: TraceLines) -> Iterator[Request]:
    """Yield the turns with their whole prompts, in order of arrival; equal times in file order.

    All lines are read before the first is yielded: a delay may put a turn after later lines.
    """
    sessions: dict[str, Request] = {}
    turns = []
    for record in json_records(lines):
        session = str(required(record, "session_id"))
        turn = _extend(sessions.get(session), record)
        sessions[session] = turn
        turns.append(turn)
    yield from sorted(turns, key=lambda turn: turn.arrival_s)


def _extend(before: Request | None, record: dict[str, Any]) -> Request:
    if before is not None and "timestamp" not in record:
        arrival_s = before.arrival_s + read_time(record, "delay", "milliseconds") / 1e3
    else:
        arrival_s = read_time(record, "timestamp", "milliseconds") / 1e3
    before = before or _START
    input_tokens = before.input_tokens + read_tokens(record, "input_length", low=1)
    if input_tokens > MAX_TOKENS:
        raise Defect(f"the session's prompt has grown to {input_tokens:,} tokens")
    return replace(
        before,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=read_tokens(record, "output_length", low=0),
        prefix_hashes=_extend_ids(before, read_block_ids(record, "hash_ids"), input_tokens),
    )


def _extend_ids(before: Request, new: tuple[int, ...], input_tokens: int) -> tuple[int, ...]:
    """A partial last block of the turn before is written anew, or keeps its id."""
    blocks = -(-input_tokens // BLOCK_TOKENS)
    earlier = tuple(before.prefix_hashes)
    full = before.input_tokens // BLOCK_TOKENS
    for kept in (earlier[:full], earlier):
        if len(kept) + len(new) == blocks:
            return kept + new
    raise Defect(
        f"hash_ids has {len(new):,} ids, expected {blocks - full:,}: the turn makes the session's "
        f"prompt {blocks:,} blocks of {BLOCK_TOKENS} tokens, of which it had {full:,}"
    )


def format_mooncake_delta(requests: Iterable[Request]) -> Iterator[str]:
    """Lines of a trace whose sessions are found by what its prompts begin with.

    Raises:
        TraceError: A request's ids are not those of this format.
    """
    sessions = Sessions()
    for number, request in enumerate(requests):
        check_mooncake(number, request)
        session, before = sessions.place(request)
        known, first = (before.input_tokens, full_blocks(before)) if before else (0, 0)
        new = request.input_tokens - known
        yield format_line(request, first, session_id=session, input_length=new)


MOONCAKE = TraceFormat(
    plain(read_mooncake),
    frozenset({"hash_ids"}),
    '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}',
    SHAPE,
)
MOONCAKE_DELTA = TraceFormat(
    plain(read_mooncake_delta),
    frozenset(),
    '{"session_id": …, "timestamp" or "delay": ms, "input_length": new tokens, '
    '"output_length": tokens, "hash_ids": [new ids]}',
)
