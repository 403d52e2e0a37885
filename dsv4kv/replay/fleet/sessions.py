"""Which conversation every request belongs to, and after what it comes, how much later."""

from collections.abc import Iterator, Sequence
from itertools import count

from dsv4kv.config.fleet import FleetSection
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.traces.request import Request, Sessions


def find_sessions(requests: Sequence[Request]) -> list[int]:
    """The conversation of every request: as the trace says, else by what prompts begin with.

    A request without a session, in a trace that has some, or without ids is one of its own.
    """
    named = [request.session for request in requests if request.session is not None]
    if named:
        others = count(max(named) + 1)
        return [next(others) if each.session is None else each.session for each in requests]
    sessions = Sessions()
    return [sessions.place(request)[0] for request in requests]


def check_sessions(requests: Sequence[Request], fleet: FleetSection) -> None:
    """Refuse settings that keep sessions, where nothing says which requests belong together.

    Raises:
        ConfigError: No request of the trace has a session or ids, and a setting needs them.
    """
    if any(each.session is not None or len(each.prefix_hashes) for each in requests):
        return
    asked = {
        "router_session_affinity_ttl_secs": fleet.router_session_affinity_ttl_secs > 0,
        "sessions think": fleet.sessions == "think",
    }
    for setting in (name for name, is_asked in asked.items() if is_asked):
        raise ConfigError(
            f"fleet.{setting}: the trace has neither sessions nor block ids, so every request is "
            "a session of its own and it would change nothing: leave it out, or take a trace "
            "with conversations."
        )


Turn = tuple[int | None, bool, float]
"""The request that one follows, None where it comes by itself; whether it follows its answer
rather than its arrival; and how much later, by itself since the start, in s."""


def find_turns(
    requests: Sequence[Request], sessions: Sequence[int], config: ReplayConfig
) -> Iterator[Turn]:
    """When every request comes, in order.

    With think times a request follows the last answer of its conversation that it could have
    seen when it was recorded; while all before it were being answered, the last of these comes
    before it. The first of a conversation comes by itself. Answers without recorded times took
    none, so the time since the request before is an upper bound.
    """
    first_s, speed = (requests[0].arrival_s if requests else 0.0), config.workload.speed
    thinks, think_s = config.fleet.sessions == "think", config.fleet.think_s
    past = dict[int, list[int]]()
    for number, request in enumerate(requests):
        before = past.setdefault(sessions[number], []) if thinks else []
        ends_s = {n: requests[n].arrival_s + (requests[n].answer_s or 0.0) for n in before}
        seen = [each for each in before if ends_s[each] <= request.arrival_s]
        if seen:
            last = max(seen, key=lambda each: (ends_s[each], each))
            gap_s = (request.arrival_s - ends_s[last]) / speed
            yield last, True, gap_s if think_s is None else think_s
        elif before:
            last = before[-1]
            yield last, False, (request.arrival_s - requests[last].arrival_s) / speed
        else:
            yield None, False, (request.arrival_s - first_s) / speed
        before.append(number)
