"""Runs the steps of a call, each in a process with a log and a limit, and packs what comes back.

Of a folder only three files matter, whenever a machine is taken away: ``rows.jsonl``, the log
of the step under way, and ``kept.tar.gz`` with all that the steps before have left.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from visit import rows
from visit.desk import Desk
from visit.plan import Step

ROWS, RUNNING, KEPT = "rows.jsonl", "running.txt", "kept.tar.gz"
MOST_BYTES = 15 << 20
"""Of the packed files: what comes back may have 16 MiB each."""

_GRACE_S = 5.0  # for an interrupted bench to save what it has
_LOG_BYTES = 4 << 20
_DONE, _FAILED = "done", "ended with exit code"


class Conductor:
    """Runs steps one after the other; what they find goes to ``out``."""

    def __init__(
        self,
        out: Path,
        environment: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m", "visit", "step"),
        *,
        small: bool,
    ) -> None:
        """Run steps so.

        Args:
            out: Folder of what comes back.
            environment: Of the steps.
            program: What is run with a step's name and where it is to answer.
            small: Whether the CPU twin stands for the GPU.
        """
        out.mkdir(parents=True, exist_ok=True)
        self._out, self._environment, self._small = out, environment, small
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="dsv4kv-visit-"))

    def run(self, steps: Sequence[Step], most_s: float) -> bool:
        """Run them; whether all came to their end. None begins after ``most_s`` seconds."""
        began = time.monotonic()
        try:
            ends = [self._run(step, most_s - (time.monotonic() - began)) for step in steps]
            return all(ends)
        finally:
            self._pack()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, step: Step, left_s: float) -> bool:
        desk = self._desk(step)
        if left_s <= 0:
            self._close(desk, "the call's time was used up before", 0.0)
            return False
        began, log = time.monotonic(), self._out / RUNNING
        print(f"{step.name} …", end=" ", flush=True)
        with log.open("wb") as file:
            end = self._wait(step, file.fileno(), min(step.limit_s, left_s))
        if end.startswith(_FAILED):
            end += _last_words(log)
        shutil.move(log, self._folder / f"{step.name}.txt")
        seconds = time.monotonic() - began
        print(f"{end}, {seconds:.0f} s", flush=True)
        self._close(desk, end, seconds)
        self._pack()
        return end == _DONE

    def _wait(self, step: Step, log: int, limit_s: float) -> str:
        """How the step ended: ``done``, or in words."""
        command = [*self._program, step.name]
        command += ["--rows", str(self._out / ROWS), "--folder", str(self._folder)]
        command += ["--twin"] if self._small else []
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self._environment,
            start_new_session=True,  # its time over, all that it started ends with it
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"still ran after {limit_s:.0f} s and was ended"
        finally:
            _end(process)
        return _DONE if code == 0 else f"{_FAILED} {code}"

    def _close(self, desk: Desk, end: str, seconds: float) -> None:
        """Tell how a step ended, and of its questions those that it left open."""
        step, file = desk.step, self._out / ROWS
        known = rows.read(file) if file.exists() else []
        answered = {row["question"] for row in known if row.get("kind") == "answer"}
        why = f"{end}: no answer" if end == _DONE else end
        for question in step.questions:
            if question.name not in answered:
                desk.answer(question.name, None, why=f"{step.name}: {why}")
        desk.note("end of a step", end=end, seconds=round(seconds, 1), log=f"{step.name}.txt")

    def _desk(self, step: Step) -> Desk:
        return open_desk(step, self._out / ROWS, self._folder, small=self._small)

    def _pack(self) -> None:
        """Pack all logs and records; while they are too many bytes, without the largest."""
        files = sorted(self._folder.rglob("*"), key=lambda path: path.stat().st_size)
        files = [path for path in files if path.is_file()]
        for path in files:
            if path.suffix == ".txt":
                _shorten(path)
        packed = self._out / f".{KEPT}"
        while True:
            with tarfile.open(packed, "w:gz") as archive:
                for path in files:
                    archive.add(path, path.relative_to(self._folder))
            if packed.stat().st_size <= MOST_BYTES:
                break
            print(f"left out, too large: {files.pop().name}", flush=True)
        packed.replace(self._out / KEPT)


def open_desk(step: Step, file: Path, folder: Path, *, small: bool) -> Desk:
    """A desk that knows the GPU of the answers so far."""
    known = rows.read(file) if file.exists() else []
    gpu = next((row["gpu"] for row in reversed(known) if row.get("gpu")), "")
    return Desk(step, file, folder, small, gpu)


def _last_words(log: Path) -> str:
    """What a step said last, behind how it ended."""
    lines = log.read_text(errors="replace").split("\n")
    return "".join(f": {line.strip()}" for line in [*filter(str.strip, lines)][-1:])


def _shorten(log: Path) -> None:
    """Keep the beginning and the end of a long log."""
    text = log.read_bytes()
    if len(text) > _LOG_BYTES:
        half = _LOG_BYTES // 2
        log.write_bytes(text[:half] + b"\n[...]\n" + text[-half:])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a step and everything it started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(_GRACE_S)
