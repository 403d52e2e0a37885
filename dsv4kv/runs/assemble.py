"""Make cases and records of measured and modelled runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic

from dsv4kv.config.load import ConfigT, Loaded, Point
from dsv4kv.runs.environment import capture_environment
from dsv4kv.runs.points import HERE, Sweep
from dsv4kv.runs.schema import NOTHING_CHECKED, Case, Environment, GpuFacts, RunRecord
from dsv4kv.runs.store import new_run_id
from dsv4kv.traces import resolve_trace, trace_sha256


@dataclass(frozen=True)
class Invocation(Generic[ConfigT]):
    """How a run was asked for."""

    argv: Sequence[str]  # the command line
    loaded: Loaded[ConfigT]  # the configuration file with overrides applied
    points: Sequence[Point[ConfigT]]  # of the sweep; one without axes
    overrides: Sequence[str]  # ``a.b=c`` options, in effect
    axes: Sequence[str]  # ``a.b=1,2`` options
    sweep: Sweep = HERE  # how its points are done


def as_options(overrides: Sequence[str], axes: Sequence[str]) -> list[str]:
    """Words of a command line for settings and axes."""
    options = [("--set", each) for each in overrides] + [("--axis", each) for each in axes]
    return [word for option in options for word in option]


def make_case(*, error: str | None = None, interrupted: bool = False, **known: Any) -> Case:
    """A case with the given values alone; failed if there is an error."""
    nothing: dict[str, Any] = {
        "axis": {},
        "status": "failed" if error else "incomplete" if interrupted else "complete",
        "error": error,
        "cache": None,
        "totals": None,
        "operations": [],
        "latencies": [],
        "memcpy": None,
        "verification": NOTHING_CHECKED,
    }
    return Case(**nothing | known)


def begin_record(
    loaded: Loaded[Any],
    trace: str | None,
    *,
    argv: Sequence[str],
    reproduce: str,
    gpu: GpuFacts | None = None,
    sweep: Sweep | None = None,
) -> dict[str, Any]:
    """Fields of a record that are known before the run; raises ``TraceError``.

    ``sweep`` that was begun before has its run's name and start.
    """
    started, kept = datetime.now(UTC), sweep.points if sweep else None
    asked = kept.asked if kept else None
    return {
        "run_id": asked.run_id if asked else new_run_id(loaded.config.name, started),
        "started_utc": asked.started_utc if asked else started.isoformat(timespec="seconds"),
        "argv": list(argv),
        "reproduce": reproduce,
        "config_source": loaded.source,
        "config_sha256": loaded.sha256,
        "trace_source": trace,
        "trace_sha256": trace_sha256(resolve_trace(trace)) if trace else None,
        "seed": loaded.config.measure.seed,
        "environment": Environment(**capture_environment(), gpu=gpu),
    }


def end_record(begun: dict[str, Any], cases: Sequence[Case], points: int = 1) -> RunRecord:
    """The record of a run of ``points`` cases that has ended, maybe before its end."""
    statuses = [case.status for case in cases] + ["incomplete"] * (len(cases) < points)
    return RunRecord(
        **begun,
        ended_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        status=next((s for s in ("failed", "incomplete") if s in statuses), "complete"),
        cases=list(cases),
    )
