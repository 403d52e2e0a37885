"""Mooncake traces of sessions whose later turns carry only what is new.

A line has the fields of a Mooncake line, and ``session_id``. ``input_length`` and ``hash_ids`` of
a later turn of a session count from the end of its turn before; its time may be a ``delay`` in
milliseconds after that turn's instead of a ``timestamp``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.fields import (
    MAX_TOKENS,
    read_block_ids,
    read_time,
    read_tokens,
    required,
)
from dsv4kv.workload.traces.jsonl import json_records
from dsv4kv.workload.traces.lines import Defect, TraceLines
from dsv4kv.workload.traces.mooncake import BLOCK_TOKENS, check_mooncake, format_line
from dsv4kv.workload.traces.sessions import Sessions, full_blocks

_START = Request(0.0, 0, 0, (), BLOCK_TOKENS)


def read_mooncake_delta(lines: TraceLines) -> Iterator[Request]:
    """Yield the turns with their whole prompts, in order of arrival; equal times in file order.

    All lines are read before the first is told: a delay may put a turn behind later lines.
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
    """A partial last block of the turn before is told anew, or keeps its id."""
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
        told, first = (before.input_tokens, full_blocks(before)) if before else (0, 0)
        new = request.input_tokens - told
        yield format_line(request, first, session_id=session, input_length=new)
