"""Several launches: fresh processes, one or two at a time, and one record of them all.

Two interleave their steps, so that both see the same noise: a byte goes around two pipes.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from dsv4kv.config.load import LoadedConfig
from dsv4kv.errors import DEFECT, INTERRUPTED, Dsv4kvError, RecordError
from dsv4kv.files import temporary_folder
from dsv4kv.processes import OWN_TREE, Child, python, with_package
from dsv4kv.runs.points import begin_record
from dsv4kv.runs.schema import Launch, RunRecord
from dsv4kv.runs.store import load_record

VARIABLE = "DSV4KV_TURNS"  # the ends to read from and to write to


class Turns:
    """One process's place in the ring."""

    def __init__(self, *ends: int) -> None:
        """Take over the file descriptors to read from and to write to; without any it is alone."""
        self._ends, self._alone = ends, not ends

    @classmethod
    def join(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """The place that the parent process has named in ``VARIABLE``; None without one."""
        ends = environment.get(VARIABLE, "").split(",")
        return cls(int(ends[0]), int(ends[1])) if len(ends) == 2 else None

    def meet(self) -> None:
        """Wait until the other is as far: what comes next begins with both ready."""
        self.wait()
        self.hand_on()

    def wait(self) -> bool:
        """Sleep until it is this process's turn: True, or the other has gone: False."""
        # nothing comes from an end without a writer: the other has ended, or died
        self._alone = self._alone or not os.read(self._ends[0], 1)
        return not self._alone

    def hand_on(self) -> None:
        if not self._alone:
            try:
                os.write(self._ends[1], b"!")
            except BrokenPipeError:
                self._alone = True


@contextmanager
def ring() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Open two pipes between two processes, as long as these are being started.

    Yields the descriptors of each, to be inherited and named in ``VARIABLE``; the first works
    first. This process's copies are closed, or an end without a writer would never show.
    """
    to_second, to_first = os.pipe(), os.pipe()
    os.write(to_first[1], b"!")
    try:
        yield (to_first[0], to_second[1]), (to_second[0], to_first[1])
    finally:
        for end in (*to_second, *to_first):
            os.close(end)


@contextmanager
def one_cpu() -> Iterator[None]:
    """Keep this thread on the last CPU that it may use, which is the other process's as well."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


_GRACE_S = 60.0  # for an interrupted process to save what it has
_STOPPED = "stopped before anything was measured"
_NO_MEMORY = ("out of memory", "MemoryError", "not enough memory", "can't allocate memory")

Status = Literal["complete", "incomplete", "failed", "crashed", "timeout", "out_of_memory"]
End = Literal["", "timeout", "interrupted"]


@dataclass(frozen=True)
class Task:
    """Arguments of a fresh process."""

    arguments: tuple[str, ...]  # those of ``dsv4kv bench``
    tree: Path = OWN_TREE
    """Folder that holds the package to run: this one's, or another revision's."""
    side: str = ""  # which side of a comparison it belongs to; empty where there are none


@dataclass(frozen=True)
class Outcome:
    """What became of a launch."""

    task: Task  # what it was to run
    started: datetime  # when the process was started
    ended: datetime  # when it had ended
    status: Status  # as in the record; the process's own where it left a record
    error: str | None  # why it is not complete
    record: RunRecord | None  # what it measured; None if it left nothing
    interrupted: bool  # whether Ctrl-C ended it
    exit_code: int  # of the process; negative for a signal
    pair: str = ""  # name that it shares with the launch it was interleaved with; empty alone


def run_fresh(tasks: Sequence[Task], timeout_s: float) -> list[Outcome]:
    """Run one task, or two with interleaved steps; Ctrl-C is passed on to them."""
    with ExitStack() as stack:
        folders = [stack.enter_context(temporary_folder("dsv4kv-launch-")) for _ in tasks]
        with ExitStack() as ends:
            places = ends.enter_context(ring()) if len(tasks) > 1 else ((),)
            running = [_Running(*each) for each in zip(tasks, folders, places, strict=True)]
        codes = _wait(running, timeout_s)
        pair = secrets.token_hex(4) if len(tasks) > 1 else ""
        return [
            each.conclude(*code, timeout_s, pair)
            for each, code in zip(running, codes, strict=True)
        ]


class _Running:
    def __init__(self, task: Task, folder: Path, place: tuple[int, ...]) -> None:
        self.task = task
        self.started = datetime.now(UTC)
        self._log, self._out = folder / "stderr", folder / "record"
        with self._log.open("wb") as stderr:
            out = "--quiet", "--out", str(self._out)
            turns = {VARIABLE: ",".join(map(str, place))} if place else {}
            self.process = Child(  # Ctrl-C on the terminal reaches it once, from here
                python("-m", "dsv4kv", "bench", *task.arguments, *out),
                stderr=stderr,
                env=with_package(os.environ, task.tree) | turns,
                pass_fds=place,
            )

    def conclude(self, code: int, end: End, timeout_s: float, pair: str) -> Outcome:
        ended, record, problem = datetime.now(UTC), None, None
        try:
            record = next((load_record(path) for path in sorted(self._out.glob("*.json"))), None)
        except RecordError as error:
            problem = f"left a record that this dsv4kv cannot read: {error}"
        if record is None:
            status, reason = _classify(code, self._log.read_text(errors="replace"))
        else:
            status = record.status
            reason = next((case.error for case in record.cases if case.error), None)
        if end == "timeout":
            status, reason = "timeout", f"still ran after {timeout_s:,.0f} s and was ended"
        elif end == "interrupted" and record is None:  # however it died: Ctrl-C was the reason
            status, reason = "incomplete", _STOPPED
        reason, interrupted = problem or reason, end == "interrupted"
        span = self.started, ended
        return Outcome(self.task, *span, status, reason, record, interrupted, code, pair)


def _wait(running: Sequence[_Running], timeout_s: float) -> list[tuple[int, End]]:
    """Exit code of each process, and what ended it if it did not end by itself."""
    deadline_s = time.monotonic() + timeout_s
    codes: list[tuple[int, End]] = []
    try:
        for each in running:
            try:
                code = each.process.wait(max(0.0, deadline_s - time.monotonic()))
                codes.append((code, ""))
            except subprocess.TimeoutExpired:
                codes.append((each.process.kill(), "timeout"))
    except KeyboardInterrupt:
        left = running[len(codes) :]
        for each in left:
            each.process.signal(signal.SIGINT)
        codes += [(_wait_patiently(each.process), "interrupted") for each in left]
    return codes


def _wait_patiently(process: Child) -> int:
    try:
        return process.wait(_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C waits no longer
        return process.kill()


def _classify(code: int, output: str) -> tuple[Status, str | None]:
    """Status and reason of a process that left no record, by its exit code and last words."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else "no word of why"
    if code == INTERRUPTED:
        return "incomplete", _STOPPED
    if code == -signal.SIGKILL:
        return "out_of_memory", "killed by SIGKILL, as systems do where memory runs out"
    if any(sign in last for sign in _NO_MEMORY):
        return "out_of_memory", last
    if code < 0:
        return "crashed", f"killed by {signal.Signals(-code).name}"
    refusals = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if code > 1 and code != DEFECT and refusals:
        return "failed", "\n".join(refusals)
    return "crashed", f"ended with exit code {code}: {last}"


_FIRST_TIMEOUT_S = 6 * 3600.0  # nothing is known yet of how long a launch takes
_SHORTEST_TIMEOUT_S = 60.0
_PATIENCE = 10  # times the slowest launch so far

OnProgress = Callable[[Sequence[Outcome], Task], None]


def run_launches(
    tasks: Sequence[Task], on_progress: OnProgress, together: int = 1
) -> list[Outcome]:
    """Run tasks one after the other; a launch that goes wrong is an outcome like others.

    Ctrl-C ends the row and returns the launches so far. ``on_progress`` is called before each
    launch with the outcomes so far. ``together``: 2 runs tasks in pairs of interleaved steps.
    Raises ``Dsv4kvError``.
    """
    outcomes: list[Outcome] = []
    try:
        for begin in range(0, len(tasks), together):
            on_progress(outcomes, tasks[begin])
            before = {outcome.task for outcome in outcomes}
            walls = [each.ended - each.started for each in outcomes if each.record]
            slowest_s = max((wall.total_seconds() for wall in walls), default=0.0)
            timeout_s = max(_SHORTEST_TIMEOUT_S, _PATIENCE * slowest_s)
            together_now = tasks[begin : begin + together]
            ran = run_fresh(together_now, timeout_s if slowest_s else _FIRST_TIMEOUT_S)
            outcomes += ran
            for outcome in ran:
                # one that could not begin: another launch of the same would not either
                refused = outcome.status == "failed" and outcome.record is None
                if refused and outcome.task not in before:
                    side = f"{outcome.task.side}: " if outcome.task.side else ""
                    lines = str(outcome.error).splitlines()
                    error = Dsv4kvError("\n".join(side + line for line in lines))
                    error.exit_code = outcome.exit_code
                    raise error
            if any(outcome.interrupted for outcome in ran):
                break
    except KeyboardInterrupt:  # between two launches
        pass
    return outcomes


def merge(
    outcomes: Sequence[Outcome], asked: int, loaded: LoadedConfig, **known: Sequence[str]
) -> RunRecord:
    """One record of several launches: every case of each, and a row for each that had none.

    ``asked``: how many were to run. ``loaded``: what they ran, for where none left a record.
    ``known``: the record's run_id, argv and reproduce.
    """
    launches = [
        Launch(
            launch=index,
            started_utc=outcome.started.isoformat(timespec="milliseconds"),
            ended_utc=outcome.ended.isoformat(timespec="milliseconds"),
            status=outcome.status,
            error=outcome.error,
            pair=outcome.pair,
        )
        for index, outcome in enumerate(outcomes)
    ]
    statuses = {launch.status for launch in launches}
    whole = statuses == {"complete"} and len(launches) == asked
    status = "complete" if whole else "incomplete"
    started = outcomes[0].started if outcomes else datetime.now(UTC)
    ended = outcomes[-1].ended if outcomes else started
    records = [outcome.record for outcome in outcomes if outcome.record]
    fields: dict[str, Any] = {
        **known,
        "started_utc": started.isoformat(timespec="seconds"),
        "ended_utc": ended.isoformat(timespec="seconds"),
        "status": "failed" if statuses - {"complete", "incomplete"} else status,
        "cases": [
            case.model_copy(update={"launch": index})
            for index, outcome in enumerate(outcomes)
            for case in (outcome.record.cases if outcome.record else ())
        ],
        "launches": launches,
    }
    if records:
        return records[0].model_copy(update=fields)
    begun = begin_record(loaded, None, argv=[], reproduce="")
    return RunRecord(**begun | {"trace_source": loaded.config.workload.trace} | fields)
