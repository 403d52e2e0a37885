"""Requests that go on where an earlier one ended: turns of a session, told by their block ids."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.runs import IdRuns


class Turn(NamedTuple):
    """A request and its place among the others.

    Attributes:
        session: Number of its session, in the order in which they begin.
        request: The request.
    """

    session: int
    request: Request


class Sessions:
    """Finds the session of every request, given in order.

    A request goes on with the session whose last turn its prompt begins with: with all of that
    turn's full blocks, and more. Where there are several it is the longest of them. Where there is
    none, or the turn before has no full block, it begins a session of its own.
    """

    def __init__(self) -> None:
        self._last: dict[int, Turn] = {}  # last turns, by the last of their full blocks
        self._count = 0

    def place(self, request: Request) -> tuple[int, Request | None]:
        """The session's number, and its turn before this one."""
        ids = request.prefix_hashes
        end = next((block for block in reversed(ids) if block in self._last), None)
        before = None if end is None else self._last[end]
        if before is not None and _goes_on(before.request, request):
            del self._last[before.request.prefix_hashes[full_blocks(before.request) - 1]]
        else:
            before = None
        session = self._count if before is None else before.session
        self._count += before is None
        if full := full_blocks(request):
            self._last[ids[full - 1]] = Turn(session, request)
        return session, before and before.request


def full_blocks(request: Request) -> int:
    """Blocks of the prompt that are full and have an id."""
    size = request.hash_block_tokens
    return min(request.input_tokens // size, len(request.prefix_hashes)) if size else 0


def _goes_on(before: Request, request: Request) -> bool:
    """Whether a prompt is longer than another, whose full blocks it begins with."""
    if request.input_tokens <= before.input_tokens:
        return False
    count = full_blocks(before)
    return _same(_first(request.prefix_hashes, count), _first(before.prefix_hashes, count))


def _first(ids: Sequence[int], count: int) -> Sequence[int]:
    return ids.first(count) if isinstance(ids, IdRuns) else ids[:count]


def _same(one: Sequence[int], other: Sequence[int]) -> bool:
    if isinstance(one, IdRuns) and isinstance(other, IdRuns):
        return np.array_equal(one.starts, other.starts) and np.array_equal(
            one.counts, other.counts
        )
    return tuple(one) == tuple(other)
