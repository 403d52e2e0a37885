"""Several launches: fresh processes, one or two at a time, and one record of them all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dsv4kv.bench.fresh import Outcome, Task, run_fresh
from dsv4kv.config.load import LoadedConfig
from dsv4kv.errors import Dsv4kvError
from dsv4kv.measure.environment import capture_environment
from dsv4kv.report.record import Case, Environment, Launch, RunRecord

_FIRST_TIMEOUT_S = 6 * 3600.0  # nothing is known yet of how long a launch takes
_SHORTEST_TIMEOUT_S = 60.0
_PATIENCE = 10  # times the slowest launch so far

Tell = Callable[[Sequence[Outcome], Task], None]


@dataclass(frozen=True)
class Request:
    """How several launches were asked for.

    Attributes:
        argv: The command line.
        reproduce: A command line that repeats them.
        loaded: The configuration they ran, for a record of launches that all left none.
        launches: How many were asked for.
        run_id: Of the record that is made of them.
    """

    argv: list[str]
    reproduce: str
    loaded: LoadedConfig
    launches: int
    run_id: str


def bench_arguments(source: str, overrides: Sequence[str], axes: Sequence[str]) -> tuple[str, ...]:
    """Arguments of ``dsv4kv bench`` for a configuration."""
    options = [("--set", each) for each in overrides] + [("--axis", each) for each in axes]
    return (source, *(word for option in options for word in option))


def run_launches(tasks: Sequence[Task], tell: Tell, together: int = 1) -> list[Outcome]:
    """Run tasks one after the other; a launch that goes wrong is an outcome like others.

    Ctrl-C ends the row; what there is comes back.

    Args:
        tasks: What to launch.
        tell: Is called before each launch (or each two) with the outcomes so far.
        together: 2 runs tasks two by two, their steps in turns.

    Raises:
        Dsv4kvError: The first launch of a side was refused, as all others would be.
    """
    outcomes: list[Outcome] = []
    try:
        for begin in range(0, len(tasks), together):
            tell(outcomes, tasks[begin])
            before = {outcome.task for outcome in outcomes}
            ran = run_fresh(tasks[begin : begin + together], _timeout_s(outcomes))
            outcomes += ran
            for outcome in ran:
                if outcome.refused and outcome.task not in before:
                    _refuse(outcome)
            if any(outcome.interrupted for outcome in ran):
                break
    except KeyboardInterrupt:  # between two launches
        pass
    return outcomes


def merge(outcomes: Sequence[Outcome], request: Request) -> RunRecord:
    """One record of several launches: every case of each, and a row for each that had none."""
    records = [outcome.record for outcome in outcomes if outcome.record]
    launches = [_describe(index, outcome) for index, outcome in enumerate(outcomes)]
    started = outcomes[0].started if outcomes else datetime.now(UTC)
    ended = outcomes[-1].ended if outcomes else started
    model = records[0] if records else _empty_record(request, started.isoformat())
    return model.model_copy(
        update={
            "run_id": request.run_id,
            "started_utc": started.isoformat(timespec="seconds"),
            "ended_utc": ended.isoformat(timespec="seconds"),
            "status": _worst(launches, request.launches),
            "argv": request.argv,
            "reproduce": request.reproduce,
            "cases": [c for i, outcome in enumerate(outcomes) for c in _cases(i, outcome)],
            "launches": launches,
        }
    )


def _timeout_s(outcomes: Sequence[Outcome]) -> float:
    slowest = max((outcome.duration_s for outcome in outcomes if outcome.record), default=0.0)
    return max(_SHORTEST_TIMEOUT_S, _PATIENCE * slowest) if slowest else _FIRST_TIMEOUT_S


def _refuse(outcome: Outcome) -> None:
    side = f"{outcome.task.side}: " if outcome.task.side else ""
    error = Dsv4kvError("\n".join(side + line for line in str(outcome.error).splitlines()))
    error.exit_code = outcome.exit_code
    raise error


def _describe(index: int, outcome: Outcome) -> Launch:
    return Launch(
        launch=index,
        started_utc=outcome.started.isoformat(timespec="milliseconds"),
        ended_utc=outcome.ended.isoformat(timespec="milliseconds"),
        status=outcome.status,
        error=outcome.error,
        pair=outcome.pair,
    )


def _cases(index: int, outcome: Outcome) -> list[Case]:
    cases = outcome.record.cases if outcome.record else []
    return [case.model_copy(update={"launch": index}) for case in cases]


def _worst(launches: Sequence[Launch], wanted: int) -> str:
    statuses = {launch.status for launch in launches}
    if statuses - {"complete", "incomplete"}:
        return "failed"
    return "complete" if statuses == {"complete"} and len(launches) == wanted else "incomplete"


def _empty_record(request: Request, started_utc: str) -> RunRecord:
    """The frame of a record where no launch left one."""
    loaded = request.loaded
    return RunRecord(
        run_id="",
        started_utc=started_utc,
        ended_utc=started_utc,
        status="failed",
        argv=[],
        reproduce="",
        config_source=loaded.source,
        config_sha256=loaded.sha256,
        trace_source=loaded.config.workload.trace,
        trace_sha256=None,
        seed=loaded.config.measure.seed,
        environment=Environment(**capture_environment()),
        cases=[],
    )
