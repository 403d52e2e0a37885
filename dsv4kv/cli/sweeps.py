"""How the points of a sweep are done, kept and taken up again, for every command with axes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.choices import BACKENDS, PEERS
from dsv4kv.errors import INTERRUPTED, ConfigError
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.config.axes import Point
    from dsv4kv.config.load import Loaded
    from dsv4kv.record.jobs import Asked, Job, Mapper, Sweep
    from dsv4kv.record.schema import RunRecord


def _sweep(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel="Sweep")


Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Processes that do points side by side.",
        rich_help_panel="Sweep",
    ),
]
OnRay = Annotated[
    str | None,
    _sweep("HOST:PORT", "Do the points on a Ray cluster; auto finds one here.", "--ray"),
]
Resume = Annotated[
    str | None,
    _sweep("RUN", "Go on with a sweep that was interrupted or killed, by its name or folder."),
]
JobFolder = Annotated[
    Path | None,
    _sweep(
        "DIR",
        "Share the points with every process started with the same command, on any machine that "
        "sees this folder; the last to finish writes the record.",
    ),
]


@dataclass(frozen=True)
class How:
    """What was said about the points of a sweep.

    Attributes:
        jobs: Processes.
        ray: Address of a cluster.
        resume: A run to go on with.
        folder: Of a job that is shared.
    """

    jobs: int = 1
    ray: str | None = None
    resume: str | None = None
    folder: Path | None = None

    @property
    def together(self) -> bool:
        """Whether points are done side by side."""
        return bool(self.jobs > 1 or self.ray or self.folder)

    def refuse_together(self, why: str) -> None:
        """Refuse points side by side; raises ``ConfigError``."""
        given = {
            f"--jobs {self.jobs}": self.jobs > 1,
            f"--ray {self.ray}": self.ray,
            f"--job-folder {self.folder}": self.folder,
        }
        for option in (name for name, is_given in given.items() if is_given):
            raise ConfigError(f"{option}: {why}: leave it out.")


def restate(
    how: How, out: Path, config: str | None, overrides: list[str], axes: list[str]
) -> tuple[str | None, list[str], list[str]]:
    """Configuration, settings and axes; of a run that is resumed its own, unless all are given.

    Raises:
        RecordError: There is no such run.
        ConfigError: Some are given, and others than its own.
    """
    from dsv4kv.record.jobs import find_job, read_asked

    if how.resume is None or axes:
        return config, overrides, axes
    asked = read_asked(find_job(how.resume, out))
    other = [each for each in overrides if each not in asked.overrides]
    other += [config] if config not in (None, asked.config_source) else []
    if other:
        raise ConfigError(
            f"--resume {how.resume}: {other[0]} is not what it was asked: leave settings out, or "
            "give all of them and every --axis."
        )
    for text in {*asked.overrides, *asked.axes} - {*overrides}:
        key, _, values = text.partition("=")
        names = {name.strip(' "') for name in values.split(",")}
        if key.strip() == "backend" and not names <= {*BACKENDS, *PEERS, "null"}:
            raise ConfigError(
                f"--resume {how.resume}: its {text} is code, and nothing that is read imports it: "
                "give all settings and every --axis again."
            )
    return asked.config_source, asked.overrides, asked.axes


@contextmanager
def sweeping(
    how: How,
    command: str,
    loaded: "Loaded[Any]",
    points: "Sequence[Point[Any]]",
    out: Path,
    *,
    said: tuple[list[str], list[str]],
    traces: Sequence[str | None],
    timed: bool,
) -> "Iterator[Sweep]":
    """What does the points, and the folder that keeps them.

    Args:
        how: What was said.
        command: Its name.
        loaded: The configuration.
        points: What is to be done.
        out: Folder of records.
        said: Overrides and axes.
        traces: Traces of the points.
        timed: Whether points are timed, and so belong to one machine.

    Raises:
        ConfigError, RecordError, TraceError: Something of it cannot be.
    """
    from dsv4kv.record.jobs import Sweep

    if how.resume and how.folder:
        raise ConfigError("--resume and --job-folder both name a job: keep one.")
    with _mapping(how, len(points)) as (mapper, together):
        if len(points) == 1 and not (how.resume or how.folder):
            yield Sweep(mapper, None, together)
            return
        asked = _ask(command, loaded, points, said, sorted({t for t in traces if t}), timed=timed)
        with _open(how, out, asked, [point.axis for point in points]) as job:
            yield Sweep(mapper, job, together)


@contextmanager
def _mapping(how: How, points: int) -> "Iterator[tuple[Mapper, bool]]":
    """Who does the points, and whether side by side; processes are there from now on."""
    from dsv4kv.workers import Crew, map_here, map_processes, map_ray

    if how.ray:
        count = how.jobs if how.jobs > 1 else None
        yield partial(map_ray, address=how.ray, count=count), True
    elif how.jobs > 1 and points > 1:
        count = min(how.jobs, points)
        crew = Crew(count)
        try:
            yield partial(map_processes, count=count, crew=crew), True
        finally:
            crew.dismiss()
    else:
        yield map_here, False


def _ask(
    command: str,
    loaded: "Loaded[Any]",
    points: "Sequence[Point[Any]]",
    said: tuple[list[str], list[str]],
    traces: Sequence[str],
    *,
    timed: bool,
) -> "Asked":
    from datetime import UTC, datetime

    from dsv4kv.measure.environment import capture_environment
    from dsv4kv.record.jobs import Asked, hash_points
    from dsv4kv.record.store import new_run_id
    from dsv4kv.traces import resolve_trace, trace_sha256

    now, here = datetime.now(UTC), capture_environment()
    version = " ".join(filter(None, (here["versions"]["dsv4kv"], here["git_sha"])))
    return Asked(
        run_id=new_run_id(loaded.config.name, now),
        started_utc=now.isoformat(timespec="seconds"),
        command=command,
        version=version,
        machine=here["hostname_sha256"] if timed else None,
        config_source=loaded.source,
        config_sha256=loaded.sha256,
        overrides=said[0],
        axes=said[1],
        traces_sha256={trace: trace_sha256(resolve_trace(trace)) for trace in traces},
        points_sha256=hash_points([point.config.model_dump(mode="json") for point in points]),
        count=len(points),
    )


def _open(how: How, out: Path, asked: "Asked", axes: list[dict[str, Any]]) -> "Job":
    from dsv4kv.errors import RecordError
    from dsv4kv.files import temporary_place
    from dsv4kv.record.jobs import find_job, open_job
    from dsv4kv.record.store import POINTS

    if how.resume:
        return open_job(find_job(how.resume, out), asked, axes)
    if how.folder:
        return open_job(how.folder, asked, axes)
    name = f"{asked.run_id}{POINTS}"
    try:
        return open_job(out / name, asked, axes)
    except RecordError:  # where the record will be, too, which says so
        return open_job(temporary_place() / name, asked, axes)


def leave_to_others(how: How, sweep: "Sweep", record: "RunRecord") -> None:
    """End here where points of a shared job are missing: whoever is last writes the record."""
    job = sweep.job
    if job is None or not how.folder or len(record.cases) == job.asked.count:
        return
    unclaimed = job.unclaimed()
    say(
        f"{job.folder}: {job.asked.count - job.left():,} of {job.asked.count:,} points are done, "
        f"{unclaimed:,} are free: the last to finish writes the record. The same command takes "
        "part again."
    )
    raise typer.Exit(INTERRUPTED if unclaimed else 0)


def close_sweep(how: How, sweep: "Sweep", command: str) -> None:
    """Remove a run's folder when its record has all; say how to go on where it has not."""
    job = sweep.job
    if job is None or how.folder:
        return
    if left := job.left():
        say(f"{left:,} of {job.asked.count:,} points are missing.", err=True)
        say(f"resume: dsv4kv {command} --resume {job.folder}", err=True)
    else:
        job.remove()
