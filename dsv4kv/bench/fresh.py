"""One launch: a fresh process that runs every case, and whatever becomes of it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

import dsv4kv
from dsv4kv.errors import RecordError
from dsv4kv.report.record import RunRecord
from dsv4kv.report.store import load_record

OWN_TREE = Path(dsv4kv.__file__).resolve().parents[1]

_GRACE_S = 60.0  # for an interrupted process to save what it has
_INTERRUPTED = 130
_NO_MEMORY = ("out of memory", "MemoryError", "not enough memory", "can't allocate memory")

Status = Literal["complete", "incomplete", "failed", "crashed", "timeout", "out_of_memory"]


@dataclass(frozen=True)
class Task:
    """What a fresh process is to run.

    Attributes:
        arguments: Those of ``dsv4kv bench``.
        tree: Folder that holds the package to run: this one's, or another revision's.
        side: Which side of a comparison it belongs to; empty where there are none.
    """

    arguments: tuple[str, ...]
    tree: Path = OWN_TREE
    side: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a launch.

    Attributes:
        task: What it was to run.
        started: When the process was started.
        ended: When it had ended.
        status: As in the record; the process's own where it left a record.
        error: Why it is not complete.
        record: What it measured; None if it left nothing.
        interrupted: Whether Ctrl-C ended it.
        exit_code: Of the process; negative for a signal.
    """

    task: Task
    started: datetime
    ended: datetime
    status: Status
    error: str | None
    record: RunRecord | None
    interrupted: bool
    exit_code: int

    @property
    def refused(self) -> bool:
        """Whether it could not begin: another launch of the same would not either."""
        return self.status == "failed" and self.record is None

    @property
    def duration_s(self) -> float:
        """Wall time of the process, imports and all."""
        return (self.ended - self.started).total_seconds()


def run_fresh(task: Task, timeout_s: float) -> Outcome:
    """Run a task with this interpreter; Ctrl-C is passed on and what was measured comes back."""
    started = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="dsv4kv-launch-") as name:
        folder = Path(name)
        log = folder / "stderr"
        with log.open("wb") as stderr:
            code, end = _run(_command(task, folder / "record"), _environment(task.tree), stderr,
                             timeout_s)  # fmt: skip
        record, problem = _read_record(folder / "record")
        told = log.read_text(errors="replace")
    status, error = _classify(code, told) if record is None else _from_record(record)
    if end == "timeout":
        status, error = "timeout", f"still ran after {timeout_s:,.0f} s and was ended"
    return Outcome(task, started, datetime.now(UTC), status, problem or error, record,
                   end == "interrupted", code)  # fmt: skip


def _command(task: Task, out: Path) -> list[str]:
    # -P: the package in task.tree, not one that happens to lie in the working folder
    program = [sys.executable, "-P", "-m", "dsv4kv", "bench"]
    return [*program, *task.arguments, "--quiet", "--out", str(out)]


def _environment(tree: Path) -> dict[str, str]:
    others = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), *([others] if others else [])])}


def _run(
    command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes], timeout_s: float
) -> tuple[int, Literal["", "timeout", "interrupted"]]:
    """Exit code, and what ended the process if it did not end by itself."""
    # A group of its own: Ctrl-C on the terminal reaches it once, from here.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env=environment,
        process_group=0,
    )
    try:
        return process.wait(timeout_s), ""
    except subprocess.TimeoutExpired:
        return _end(process), "timeout"
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        return _wait_patiently(process), "interrupted"


def _wait_patiently(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(_GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C waits no longer
        return _end(process)


def _end(process: "subprocess.Popen[bytes]") -> int:
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _read_record(folder: Path) -> tuple[RunRecord | None, str | None]:
    """The record that the process left, or why it cannot be used."""
    paths = sorted(folder.glob("*.json"))
    try:
        return (load_record(paths[0]) if paths else None), None
    except RecordError as error:
        return None, f"left a record that this dsv4kv cannot read: {error}"


def _from_record(record: RunRecord) -> tuple[Status, str | None]:
    return record.status, next((case.error for case in record.cases if case.error), None)


def _classify(code: int, told: str) -> tuple[Status, str | None]:
    """Status and reason of a process that left no record, by its exit code and last words."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    last = lines[-1] if lines else "no word of why"
    if code == _INTERRUPTED:
        return "incomplete", "stopped before anything was measured"
    if code == -signal.SIGKILL:
        return "out_of_memory", "killed by SIGKILL, as systems do where memory runs out"
    if any(sign in last for sign in _NO_MEMORY):
        return "out_of_memory", last
    if code < 0:
        return "crashed", f"killed by {signal.Signals(-code).name}"
    refusals = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if code > 1 and refusals:
        return "failed", "\n".join(refusals)
    return "crashed", f"ended with exit code {code}: {last}"
