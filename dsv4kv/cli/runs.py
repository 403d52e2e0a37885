"""Runs on the command line: sweeps that are kept and resumed, a record, and an exit code."""

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsv4kv.choices import BACKENDS, PEERS
from dsv4kv.cli import ENDINGS
from dsv4kv.cli.options import write_json
from dsv4kv.errors import INTERRUPTED, ConfigError, Dsv4kvError, RecordError, VerificationError
from dsv4kv.view.console import one_line, open_console, say

if TYPE_CHECKING:
    from dsv4kv.config.load import ConfigT, Loaded, Point
    from dsv4kv.runs.points import Invocation, Points, Sweep
    from dsv4kv.runs.schema import RunRecord
    from dsv4kv.runs.store import Saved


def keep_record(
    record: "RunRecord", folder: Path, json_: str | None, *, silent: bool, verbose: bool = False
) -> None:
    """Save a record and print it, with ``silent`` only its problems, on standard error."""
    from dsv4kv.runs.store import dumps, save_record
    from dsv4kv.view import render, runs

    with endings_put_off():
        saved = save_record(record, folder)
    console = open_console(stderr=True, soft_wrap=True) if silent else open_console()
    parts = runs.report_record(record, saved.path, quiet=silent, verbose=verbose)
    render.show(parts, console)
    say_saved(saved, silent=silent)
    try:
        if json_:
            write_json(dumps(record), json_)
    except Dsv4kvError:
        if silent:  # the record is what is left
            say(one_line(f"record: {saved.path}"), err=True)
        raise


def say_saved(saved: "Saved", *, silent: bool) -> None:
    """Say where a record is; with ``silent`` only that it is not where it should be."""
    if not silent:
        say(one_line(f"record: {saved.path}"))
    if saved.problem:
        say(one_line(f"warning: {saved.problem}"), err=True)


def end_run(record: "RunRecord") -> None:
    """Leave with the exit code of the run's status, and its sentences where it failed."""
    problems = [case.error for case in record.cases if case.status == "failed" and case.error]
    problems += [
        f"launch {launch.launch} {launch.status.replace('_', ' ')}: {launch.error}"
        for launch in record.launches
        if launch.status in ("crashed", "timeout", "out_of_memory")
    ]
    if problems:
        raise VerificationError("\n".join(dict.fromkeys(problems)))
    if record.status == "incomplete":
        raise typer.Exit(INTERRUPTED)


@contextmanager
def endings_put_off() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never reach it
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


@dataclass(frozen=True)
class Request:
    """What was asked of a command with axes."""

    command: str
    config: str | None  # name or path of the configuration; None for the default
    overrides: list[str]  # KEY=VALUE
    axes: list[str]  # KEY=A,B
    out: Path  # folder of records
    resume: str | None = None  # name or file of an interrupted sweep

    def restated(self) -> "Request":
        """With configuration, settings and axes of the run that is resumed, if none are given.

        A backend that is code is refused: nothing that is read imports code.
        """
        from dsv4kv.runs.points import find_points, read_points

        if self.resume is None or self.axes:
            return self
        asked = read_points(find_points(self.resume, self.out)).asked
        if given := [*self.overrides, *filter(None, [self.config])]:
            raise ConfigError(
                f"--resume {self.resume}: {given[0]} differs from its settings: omit settings, "
                "or give all of them and every --axis."
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


def open_sweep(
    request: Request,
    root: "type[ConfigT]",
    check: "Callable[[Sequence[Point[ConfigT]]], None]",
    trace_of: "Callable[[ConfigT], str | None]",
    *,
    jobs: int | None = 1,
    ray: str | None = None,
    timed: bool = False,
) -> "Invocation[ConfigT]":
    """A run's configuration and points, which ``check`` may refuse; several are kept in a file.

    Points that are ``timed`` belong to one machine. Raises ``RecordError`` where the file cannot
    be written or is of another sweep.
    """
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.runs.points import Invocation, Sweep

    request = request.restated()
    loaded = load_config(request.config, request.overrides, root)
    points = expand_axes(loaded, request.overrides, request.axes)
    check(points)
    traces = [trace_of(point.config) for point in points]
    several = len(points) > 1
    kept = None
    if several or request.resume is not None:
        kept = _keep_points(request, loaded, points, traces, timed=timed)
    sweep = Sweep(kept, jobs if several else 1, ray)
    argv = ["dsv4kv", *sys.argv[1:]]
    return Invocation(argv, loaded, points, request.overrides, request.axes, sweep)


def _keep_points(
    request: Request,
    loaded: "Loaded[Any]",
    points: "Sequence[Point[Any]]",
    traces: Sequence[str | None],
    *,
    timed: bool,
) -> "Points":
    from dsv4kv.runs.environment import capture_environment
    from dsv4kv.runs.points import Asked, find_points, hash_points, open_points
    from dsv4kv.runs.store import POINTS, new_run_id
    from dsv4kv.traces import resolve_trace, trace_sha256

    now, here = datetime.now(UTC), capture_environment()
    wanted = [(point.axis, point.config.model_dump(mode="json")) for point in points]
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
        points_sha256=hash_points([config for _, config in wanted], traces),
        count=len(points),
    )
    if request.resume is not None:
        return open_points(find_points(request.resume, request.out), asked, wanted)
    name = f"{asked.run_id}{POINTS}"
    try:
        return open_points(request.out / name, asked, wanted)
    except RecordError:  # where the record will be, too, which says so
        return open_points(Path(tempfile.gettempdir()) / name, asked, wanted)


def close_sweep(sweep: "Sweep") -> None:
    """Remove a run's points when its record has all; say how to go on where it has not."""
    points = sweep.points
    if points is None:
        return
    if points.missing:
        say(f"{points.missing:,} of {points.asked.count:,} points are missing.", err=True)
        say(f"resume: {points.resume}", err=True)
    else:
        points.path.unlink(missing_ok=True)
