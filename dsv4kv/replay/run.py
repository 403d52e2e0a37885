"""A whole run: every case of a sweep, and the record of it."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from dsv4kv.config.axes import Point
from dsv4kv.config.load import Loaded
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import CacheError, Dsv4kvError
from dsv4kv.measure.environment import capture_environment
from dsv4kv.replay.build import Replay, build_replay, read_requests
from dsv4kv.replay.describe import (
    describe_cache,
    describe_replay,
    describe_totals,
    list_latencies,
)
from dsv4kv.report.names import new_run_id
from dsv4kv.report.record import Case, Environment, Operation, RunRecord, Verification
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces import resolve_trace, trace_sha256

Tell = Callable[[int, int], None]
"""Is told how many requests are done, of how many, over all cases."""

_NOTHING_CHECKED = Verification(checks=0, by_operation={}, failures=[])


@dataclass(frozen=True)
class Invocation:
    """How the replay was asked for.

    Attributes:
        argv: The command line.
        loaded: The configuration file with overrides applied.
        points: Points of the sweep; one without axes.
        overrides: ``a.b=c`` options, in effect.
        axes: ``a.b=1,2`` options.
    """

    argv: list[str]
    loaded: Loaded[ReplayConfig]
    points: Sequence[Point[ReplayConfig]]
    overrides: Sequence[str]
    axes: Sequence[str]


def run_replay(invocation: Invocation, tell: Tell) -> RunRecord:
    """Replay every case; Ctrl-C ends the run, a case that fails does not end a sweep.

    Raises:
        Dsv4kvError: The only case cannot be built or its trace cannot be read.
    """
    started, config = datetime.now(UTC), invocation.loaded.config
    trace = config.workload.trace
    digest = trace_sha256(resolve_trace(trace)) if trace else None
    environment = Environment(**capture_environment())
    cases = _run_points(invocation.points, environment.memory_bytes, tell)
    statuses = [case.status for case in cases]
    return RunRecord(
        run_id=new_run_id(config.name, started),
        started_utc=started.isoformat(timespec="seconds"),
        ended_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        status=next((s for s in ("failed", "incomplete") if s in statuses), "complete"),
        argv=invocation.argv,
        reproduce=_reproduce(invocation),
        config_source=invocation.loaded.source,
        config_sha256=invocation.loaded.sha256,
        trace_source=trace,
        trace_sha256=digest,
        seed=config.measure.seed,
        environment=environment,
        cases=cases,
    )


def _run_points(
    points: Sequence[Point[ReplayConfig]], machine_bytes: int | None, tell: Tell
) -> list[Case]:
    """One case after the other; a trace that they share is read once."""
    cases: list[Case] = []
    known: tuple[Any, list[Request]] | None = None
    for number, point in enumerate(points):
        key = (point.config.workload, point.config.measure.seed)
        try:
            if known is None or known[0] != key:
                known = (key, read_requests(point.config))
            requests = known[1]
            replay = build_replay(point.config, requests, machine_bytes=machine_bytes)
            so_far = partial(_tell_all, tell, number, len(points), len(requests))
            cases.append(_serve(point, replay, so_far))
        except Dsv4kvError as error:
            if len(points) == 1:
                raise
            cases.append(_unbuilt(point, str(error)))
        if cases[-1].status == "incomplete":
            break
    return cases


def _tell_all(tell: Tell, case: int, cases: int, requests: int, done: int) -> None:
    tell(case * requests + done, cases * requests)


def _serve(point: Point[ReplayConfig], replay: Replay, tell: Callable[[int], None]) -> Case:
    """Serve the trace and describe what came of it."""
    interrupted, problem, ended = False, None, False
    try:
        while replay.scheduler.turn():
            tell(replay.outcome.finished)
        ended = True
    except KeyboardInterrupt:
        interrupted = True
    except CacheError as error:
        if not replay.data:
            raise
        problem = f"the cache refused what the scheduler had decided: {error}"
    if ended:
        problem = _find_problem(replay)
    status: Literal["failed", "incomplete", "complete"] = (
        "failed" if problem else "incomplete" if interrupted else "complete"
    )
    operations, verification = _describe_work(replay)
    return Case(
        axis=point.axis,
        status=status,
        error=problem,
        config=point.config.model_dump(mode="json"),
        backend="cpu" if replay.data else "replay",
        cache=describe_cache(replay),
        totals=describe_totals(replay, ended=ended),
        operations=operations,
        latencies=list_latencies(replay),
        memcpy=None,
        verification=verification,
        replay=describe_replay(replay),
    )


def _describe_work(replay: Replay) -> tuple[list[Operation], Verification]:
    """Operations that were timed and checks that were made, where data was moved."""
    if replay.data is None:
        return [], _NOTHING_CHECKED
    from dsv4kv.bench.summary import list_operations  # needs torch
    from dsv4kv.replay.data.told import describe_checks

    return list_operations(replay.data.parts.recorder), describe_checks(replay.data)


def _find_problem(replay: Replay) -> str | None:
    """What must not happen and did."""
    ledger, outcome, data = replay.scheduler.ledger, replay.outcome, replay.data
    if not outcome.finished:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in outcome.rejected.items())
        return (
            f"none of {len(replay.requests):,} requests fits ({reasons}): give more "
            "cache.memory_bytes or cache.num_blocks, or raise cache.max_context_tokens."
        )
    if held := ledger.private + ledger.shared:
        return f"{held} blocks are still held although every request has ended."
    return data.find_problem(ledger.cached) if data else None


def _unbuilt(point: Point[ReplayConfig], problem: str) -> Case:
    return Case(
        axis=point.axis,
        status="failed",
        error=problem,
        config=point.config.model_dump(mode="json"),
        backend="replay",
        cache=None,
        totals=None,
        operations=[],
        latencies=[],
        memcpy=None,
        verification=_NOTHING_CHECKED,
    )


def _reproduce(invocation: Invocation) -> str:
    trace = invocation.loaded.config.workload.trace
    words = ["dsv4kv", "replay", *([trace] if trace else []), "--config", invocation.loaded.source]
    options = [("--set", each) for each in invocation.overrides]
    options += [("--axis", each) for each in invocation.axes]
    return shlex.join(words + [word for option in options for word in option])
