"""Sweeps and their records: points one by one or in parallel, each finished one kept.

``RUN.points.jsonl`` next to the record holds what was asked and a line for every finished point.
A process that is killed while it writes one leaves a line that is cut short: that point is done
again.
"""

import fcntl
import json
import os
import shlex
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Generic, Literal

from pydantic import Field, StringConstraints

from dsv4kv import files
from dsv4kv.config.load import ConfigT, Loaded, Point
from dsv4kv.errors import RecordError
from dsv4kv.processes import map_parallel
from dsv4kv.runs.environment import capture_environment
from dsv4kv.runs.parts import Moment, Part, RunId
from dsv4kv.runs.schema import NOTHING_CHECKED, Case, Environment, GpuFacts, RunRecord
from dsv4kv.runs.store import POINTS, digest, new_run_id, read_int
from dsv4kv.traces import resolve_trace, trace_sha256

Option = Annotated[str, StringConstraints(max_length=2**20)]


class Asked(Part):
    """Options of a sweep; a resumed one must agree."""

    run_id: RunId = Field(description="Name of the run that gathers it.")
    started_utc: Moment = Field(description="When it was begun, ISO 8601.")
    command: Literal["replay", "bench"] = Field(description="What does its points.")
    version: str = Field(description="Of dsv4kv, with the revision if it runs from a source tree.")
    machine: str | None
    """Digest of the host's name where points are timed; null where any machine gives the same."""
    config_source: str = Field(description="Path or name of the configuration file.")
    config_sha256: str = Field(description="Digest of its text, before overrides.")
    overrides: list[Option] = Field(max_length=1_000, description="``a.b=c`` options in effect.")
    axes: list[Option] = Field(max_length=1_000, description="``a.b=1,2`` options.")
    traces_sha256: dict[str, str] = Field(description="Digest of every trace, by its name.")
    points_sha256: str = Field(description="Digest of all points' whole configurations.")
    count: int = Field(description="Points.")


class _Line(Part):
    point: int
    case: Case


_AGREE = {
    "command": "another command",
    "version": "another version of dsv4kv",
    "machine": "another machine, and its points are timed",
    "config_sha256": "another text of the configuration",
    "traces_sha256": "another trace",
    "points_sha256": "other settings, axes or files that they name",
    "count": "another number of points",
}


def hash_points(configs: Sequence[dict[str, Any]], hashed: Container[str | None] = ()) -> str:
    """Digest of the whole configurations of all points, in order, and of files that they name.

    A calibration may be stored by its name. Of ``hashed`` files there is a digest elsewhere.
    """
    folder, named = files.user_calibrations(), dict[str, str]()
    for text in sorted(set(_texts([*configs]))):
        name = text.partition(":")[0]  # of FILE.py:FUNCTION
        for path in (name, str(folder and folder / f"{name}.yaml")):
            if text not in hashed and os.path.isfile(path):  # noqa: PTH113 (of any text)
                named[path] = files.hash_file(path)
    return digest(files.whole_json({"points": list(configs), "files": named}))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else ():
        yield from _texts(each)
    for each in value if isinstance(value, list) else ():
        yield from _texts(each)


@dataclass(frozen=True)
class Points:
    """A sweep's file."""

    path: Path  # where it is
    asked: Asked  # what was asked
    cases: dict[int, Case] = field(default_factory=dict)  # finished points by number, from 0

    @property
    def missing(self) -> int:
        return self.asked.count - len(self.cases)

    @property
    def resume(self) -> str:
        folder = self.path.parent
        there = "" if folder == Path("results") else f" --out {shlex.quote(str(folder))}"
        return f"dsv4kv {self.asked.command} --resume {self.asked.run_id}{there}"

    def keep(self, number: int, case: Case) -> None:
        """Append a finished point, on disk when this returns; raises ``RecordError``."""
        line = json.dumps(files.whole_json(_Line(point=number, case=case).model_dump(mode="json")))
        try:
            with self.path.open("ab") as file:
                file.write(f"{line}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                f"{self.path} cannot be written ({error.strerror}). Of {self.asked.count:,} "
                f"points {len(self.cases):,} are kept there: make room, or let it be written, and "
                "resume."
            ) from None
        self.cases[number] = case


def find_points(run: str, out: Path) -> Path:
    """File of a sweep by the run's name, its record or itself; ``RecordError`` without one."""
    name = Path(run).name.removesuffix(POINTS).removesuffix(".json")
    places = [Path(run), Path(run).parent / f"{name}{POINTS}", out / f"{name}{POINTS}"]
    for path in places:
        if path.is_file() and path.name.endswith(POINTS):
            return path
    raise RecordError(
        f"--resume {run}: there is no {places[-1]}: it was no sweep, or it is whole, and its "
        f"record has all points. Name a run of {out}, or its file of points."
    )


def read_points(path: Path) -> Points:
    """Read a sweep's file; raises ``RecordError`` if what was asked cannot be read."""
    try:
        first, *lines = files.read_document(path).splitlines()
        points = Points(path, Asked.model_validate_json(first))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no sweep of this dsv4kv"
        raise RecordError(f"{path} cannot be read ({reason}).") from None
    for text in lines:
        # cut short, or no run's: the point is done again
        with suppress(ValueError, RecursionError):
            json.loads(text, parse_int=read_int)
            line = _Line.model_validate_json(text, strict=True)
            points.cases[line.point] = line.case
    return points


_HELD: dict[int, int] = {}  # descriptors of files, by inode, locked until this process ends


def open_points(
    path: Path, asked: Asked, points: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> Points:
    """Begin a sweep's file, or resume the one that is there; raises ``RecordError``."""
    asked = Asked.model_validate(files.whole_json(asked.model_dump()))
    try:
        if not path.exists():
            files.make_folder(path.parent)
            with files.replacing(path) as file:
                file.write(f"{asked.model_dump_json()}\n".encode())
        if (inode := path.stat().st_ino) not in _HELD:
            held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _HELD[inode] = held
        if not path.read_bytes().endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")
    except BlockingIOError:
        raise RecordError(
            f"{path} is written by another process: wait for its end, or begin a new sweep."
        ) from None
    except OSError as error:
        raise RecordError(f"{path} cannot be written ({error.strerror}).") from None
    found = read_points(path)
    for name, what in _AGREE.items():
        there, now = (json.dumps(getattr(each, name)) for each in (found.asked, asked))
        if there != now:
            shown = (one if len(one) < 80 else f"{one[:12]}…" for one in (there, now))
            raise RecordError(
                f"{path} is of {what} ({', now '.join(shown)}): continue with that one, or "
                "begin a new sweep."
            )
    for number, case in found.cases.items():
        wanted = files.whole_json(list(points[number])) if number in range(len(points)) else None
        if [case.axis, case.config] != wanted or case.launch:
            raise RecordError(
                f"{path} has a line of point {number} that is none of this sweep: remove it, "
                "and the point is done again, or begin a new sweep."
            )
    return found


def list_unfinished(out: Path) -> list[Points]:
    """Unfinished sweeps of a folder of records, by name; unreadable ones are skipped."""
    found = []
    for path in sorted(out.glob(f"*{POINTS}")):
        with suppress(RecordError):
            found.append(read_points(path))
    return found


@dataclass(frozen=True)
class Sweep:
    """How points are done."""

    points: Points | None = None  # keeps finished ones; None where there is one point
    jobs: int | None = 1  # points at once; None takes all that the cluster has
    ray: str | None = None  # address of a Ray cluster; None for processes here

    @property
    def parallel(self) -> bool:
        return self.jobs != 1 or self.ray is not None


HERE = Sweep()  # one point after the other, none of them kept


def run_points(
    sweep: Sweep,
    count: int,
    work: Callable[[int], Case],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Case]:
    """Do every point that is not finished yet; Ctrl-C ends with those that are, if any.

    Points are numbered from 0. ``on_progress`` is called with how many of how many are finished,
    where several run concurrently.
    """
    cases = dict(sweep.points.cases) if sweep.points else {}
    numbers = [number for number in range(count) if number not in cases]
    try:
        if sweep.parallel and numbers:
            results = map_parallel(work, numbers, sweep.jobs, sweep.ray)
        else:
            results = ((number, work(number)) for number in numbers)
        with closing(results):
            for number, case in results:
                cases[number] = case
                if case.status == "incomplete":
                    break
                if sweep.points:
                    sweep.points.keep(number, case)
                if sweep.parallel and on_progress:
                    on_progress(len(cases), count)
    except BaseException as error:
        if sweep.points and not sweep.points.cases:  # nothing to resume
            sweep.points.path.unlink(missing_ok=True)
            with suppress(OSError):  # it has other files
                sweep.points.path.parent.rmdir()
        if not cases or not isinstance(error, KeyboardInterrupt):
            raise
    return [cases[number] for number in sorted(cases)]


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
