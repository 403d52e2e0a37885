"""Requests that go on where an earlier one ended: turns of a session, told by their block ids."""

from collections.abc import Sequence

from dsv4kv.workload.request import Request
from dsv4kv.workload.traces.runs import IdRuns


class Sessions:
    """Finds the session of every request, given in order.

    A request goes on with the session whose last turn its prompt begins with: with all of that
    turn's full blocks, and more. Where there are several it is the longest of them. Where there is
    none, or the turn before has no full block, it begins a session of its own.
    """

    def __init__(self) -> None:
        # Number and last turn of every session, by the last of that turn's full blocks.
        self._last: dict[int, tuple[int, Request]] = {}
        self._count = 0

    def place(self, request: Request) -> tuple[int, Request | None]:
        """The session's number, in the order in which they begin, and its turn before this one."""
        ids = request.prefix_hashes
        end = next((block for block in reversed(ids) if block in self._last), None)
        if end is not None and _goes_on(self._last[end][1], request):
            session, before = self._last.pop(end)
        else:
            session, before = self._count, None
            self._count += 1
        if full := full_blocks(request):
            self._last[ids[full - 1]] = session, request
        return session, before


def full_blocks(request: Request) -> int:
    """Blocks of the prompt that are full and have an id."""
    size = request.hash_block_tokens
    return min(request.input_tokens // size, len(request.prefix_hashes)) if size else 0


def _goes_on(before: Request, request: Request) -> bool:
    """Whether a prompt is longer than another, whose full blocks it begins with."""
    if request.input_tokens <= before.input_tokens:
        return False
    count = full_blocks(before)
    return _first(request.prefix_hashes, count) == _first(before.prefix_hashes, count)


def _first(ids: Sequence[int], count: int) -> Sequence[int]:
    return ids.first(count) if isinstance(ids, IdRuns) else ids[:count]
