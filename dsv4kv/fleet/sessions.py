"""Which conversation every request belongs to, and after what it comes, how much later."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.config.fleet import FleetSection
from dsv4kv.traces.request import Request
from dsv4kv.traces.runs import Sessions


def find_sessions(requests: Sequence[Request]) -> list[int]:
    """The conversation of every request: as the trace says, else by what prompts begin with."""
    if any(request.session is not None for request in requests):
        return [-1 if request.session is None else request.session for request in requests]
    sessions = Sessions()
    return [sessions.place(request)[0] for request in requests]


@dataclass(frozen=True)
class Turn:
    """When a request comes.

    Attributes:
        after: The request that it follows; None where it comes by itself.
        answered: Whether it follows its answer, rather than its arrival.
        gap_s: How much later; by itself, since the start.
    """

    after: int | None
    answered: bool
    gap_s: float


def find_turns(
    requests: Sequence[Request], sessions: Sequence[int], fleet: FleetSection, speed: float
) -> list[Turn]:
    """When every request comes, in order.

    With think times a request follows the last answer of its conversation that it could have
    seen when it was recorded; while all before it were being answered, the last of these comes
    before it. The first of a conversation comes by itself. Answers without recorded times took
    none, so the time since the request before is an upper bound.
    """
    first_s = requests[0].arrival_s if requests else 0.0
    past: dict[int, list[int]] = {}
    turns = []
    for number, request in enumerate(requests):
        before = past.setdefault(sessions[number], [])
        if fleet.sessions == "trace" or not before:
            turns.append(Turn(None, False, (request.arrival_s - first_s) / speed))
        else:
            turns.append(_follow(requests, before, request, fleet.think_s, speed))
        before.append(number)
    return turns


def _follow(
    requests: Sequence[Request],
    before: Sequence[int],
    request: Request,
    think_s: float | None,
    speed: float,
) -> Turn:
    ends_s = {n: requests[n].arrival_s + (requests[n].answer_s or 0.0) for n in before}
    seen = [number for number in before if ends_s[number] <= request.arrival_s]
    if not seen:
        last = before[-1]
        return Turn(last, False, (request.arrival_s - requests[last].arrival_s) / speed)
    last = max(seen, key=lambda number: (ends_s[number], number))
    gap_s = (request.arrival_s - ends_s[last]) / speed
    return Turn(last, True, gap_s if think_s is None else think_s)
