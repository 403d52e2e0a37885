"""How the points of a sweep are done, kept and resumed, for every command with axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.choices import BACKENDS, PEERS
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.config.load import Loaded, Point
    from dsv4kv.record.points import Points, Sweep


def _sweep(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel="Sweep")


Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Points that are done at once.",
        rich_help_panel="Sweep",
    ),
]
OnRay = Annotated[
    str | None,
    _sweep("HOST:PORT", "Do the points on a Ray cluster; auto finds one here.", "--ray"),
]
Resume = Annotated[
    str | None,
    _sweep("RUN", "Go on with a sweep that was interrupted or killed, by its name or file."),
]


@dataclass(frozen=True)
class Request:
    """What was asked of a command with axes.

    Attributes:
        command: Its name.
        config: Name or path of the configuration; None for the default.
        overrides: ``KEY=VALUE`` settings.
        axes: ``KEY=A,B`` axes.
        out: Folder of records.
        resume: A run to go on with.
    """

    command: str
    config: str | None
    overrides: list[str]
    axes: list[str]
    out: Path
    resume: str | None = None

    def restated(self) -> "Request":
        """With configuration, settings and axes of the run that is resumed, if none are given.

        Raises:
            RecordError: There is no such run.
            ConfigError: Settings without axes are given, or the run's backend is code.
        """
        from dataclasses import replace

        from dsv4kv.record.points import find_points, read_points

        if self.resume is None or self.axes:
            return self
        asked = read_points(find_points(self.resume, self.out)).asked
        if given := [*self.overrides, *filter(None, [self.config])]:
            raise ConfigError(
                f"--resume {self.resume}: {given[0]} is not what it was asked: leave settings "
                "out, or give all of them and every --axis."
            )
        for text in [*asked.overrides, *asked.axes]:
            key, _, values = text.partition("=")
            names = {name.strip(' "') for name in values.split(",")}
            if key.strip() == "backend" and not names <= {*BACKENDS, *PEERS, "null"}:
                raise ConfigError(
                    f"--resume {self.resume}: its {text} is code, and nothing that is read "
                    "imports it: give all settings and every --axis again."
                )
        return replace(
            self, config=asked.config_source, overrides=asked.overrides, axes=asked.axes
        )


def keep_points(
    request: Request,
    loaded: "Loaded[Any]",
    points: "Sequence[Point[Any]]",
    traces: Sequence[str | None],
    *,
    timed: bool,
) -> "Points | None":
    """The file that keeps finished points; None where there is one point.

    Args:
        request: What was asked.
        loaded: The configuration.
        points: What is to be done.
        traces: Traces of the points.
        timed: Whether points are timed, and so belong to one machine.

    Raises:
        RecordError, TraceError: It cannot be written, or is of another sweep.
    """
    import tempfile
    from datetime import UTC, datetime

    from dsv4kv.errors import RecordError
    from dsv4kv.measure.environment import capture_environment
    from dsv4kv.record.points import Asked, find_points, hash_points, open_points
    from dsv4kv.record.store import POINTS, new_run_id
    from dsv4kv.traces import resolve_trace, trace_sha256

    if len(points) == 1 and not request.resume:
        return None
    now, here = datetime.now(UTC), capture_environment()
    asked = Asked(
        run_id=new_run_id(loaded.config.name, now),
        started_utc=now.isoformat(timespec="seconds"),
        command=request.command,
        version=" ".join(filter(None, (here["versions"]["dsv4kv"], here["git_sha"]))),
        machine=here["hostname_sha256"] if timed else None,
        config_source=loaded.source,
        config_sha256=loaded.sha256,
        overrides=request.overrides,
        axes=request.axes,
        traces_sha256={
            trace: trace_sha256(resolve_trace(trace)) for trace in sorted({t for t in traces if t})
        },
        points_sha256=hash_points([point.config.model_dump(mode="json") for point in points]),
        count=len(points),
    )
    if request.resume:
        return open_points(find_points(request.resume, request.out), asked)
    name = f"{asked.run_id}{POINTS}"
    try:
        return open_points(request.out / name, asked)
    except RecordError:  # where the record will be, too, which says so
        return open_points(Path(tempfile.gettempdir()) / name, asked)


def close_sweep(sweep: "Sweep", command: str) -> None:
    """Remove a run's points when its record has all; say how to go on where it has not."""
    points = sweep.points
    if points is None:
        return
    if points.missing:
        say(f"{points.missing:,} of {points.asked.count:,} points are missing.", err=True)
        say(f"resume: dsv4kv {command} --resume {points.path}", err=True)
    else:
        points.path.unlink(missing_ok=True)
