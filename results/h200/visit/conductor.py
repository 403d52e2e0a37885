"""Runs the steps of a call, each in a process with a log and a limit, and packs what comes back.

Of a folder only three files matter, whenever a machine is taken away: ``rows.jsonl``, the log
of the step under way, and ``kept.tar.gz`` with all that the steps before have left.
"""

import io
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from dsv4kv.files import replacing
from dsv4kv.processes import Child
from visit import rows
from visit.desk import NO_TOOL, Desk
from visit.plan import TWIN_PATIENCE, Step

ROWS, RUNNING, KEPT = "rows.jsonl", "running.txt", "kept.tar.gz"
MOST_BYTES = 15 << 20
"""Of the packed files: what comes back may have 16 MiB each."""

_GRACE_S = 10.0  # for an interrupted bench to save what it has
_LOG_BYTES = 4 << 20
_DONE, _FAILED, _SKIPPED = "done", "ended with exit code", "skipped"


class Conductor:
    """Runs steps one after the other; what they find goes to ``out``."""

    def __init__(
        self,
        out: Path,
        folder: Path,
        environment: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m", "visit", "step"),
        *,
        small: bool,
    ) -> None:
        """Run steps so.

        Args:
            out: Folder of what comes back.
            folder: A temporary one, for logs and records until they are packed.
            environment: Of the steps.
            program: What is run with a step's name and where it is to answer.
            small: Whether the CPU twin stands for the GPU.
        """
        out.mkdir(parents=True, exist_ok=True)
        self._out, self._environment, self._small = out, environment, small
        self._folder, self._program = folder, program
        self._patience = TWIN_PATIENCE if small else 1

    def run(self, steps: Sequence[Step], most_s: float) -> bool:
        """Run them; whether all came to their end. None begins after ``most_s`` seconds."""
        most_s, began = most_s * self._patience, time.monotonic()
        ends = [self._run(step, most_s - (time.monotonic() - began)) for step in steps]
        return all(ends)

    def _run(self, step: Step, left_s: float) -> bool:
        before = len(self._known())
        if left_s <= 0:
            self._close(step, "the call's time was used up before", 0.0, before)
            return False
        began, log = time.monotonic(), self._out / RUNNING
        print(f"{step.name} …", end=" ", flush=True)
        with log.open("wb") as file:
            end = self._wait(step, file, min(step.limit_s * self._patience, left_s))
        if end.startswith((_FAILED, _SKIPPED)):
            end += _last_words(log)
        shutil.move(log, self._folder / f"{step.name}.txt")
        seconds = time.monotonic() - began
        print(f"{end}, {seconds:.0f} s", flush=True)
        self._close(step, end, seconds, before)
        self._pack()
        return end == _DONE or end.startswith(_SKIPPED)

    def _wait(self, step: Step, log: IO[bytes], limit_s: float) -> str:
        """How the step ended: ``done``, or in words."""
        command = [*self._program, step.name]
        command += ["--rows", str(self._out / ROWS), "--folder", str(self._folder)]
        command += ["--twin"] if self._small else []
        child = Child(command, stdout=log, stderr=log, env=self._environment)
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)
            return f"still ran after {limit_s:.0f} s and was ended"
        finally:
            child.kill()  # and all that it started
        if code == NO_TOOL and self._small:
            return _SKIPPED
        return _DONE if code == 0 else f"{_FAILED} {code}"

    def _close(self, step: Step, end: str, seconds: float, before: int) -> None:
        """Tell how a step ended, and of its questions those that its rows leave open."""
        desk = open_desk(step, self._out / ROWS, self._folder, small=self._small)
        told = self._known()[before:]
        answered = {row["question"] for row in told if row["kind"] == "answer"}
        why = f"{end}: no answer" if end == _DONE else end
        for question in step.questions:
            if question.name not in answered:
                desk.answer(question.name, None, why=f"{step.name}: {why}")
        desk.note("end of a step", end=end, seconds=round(seconds, 1), log=f"{step.name}.txt")

    def _known(self) -> list[rows.Row]:
        return rows.read(self._out / ROWS)

    def _pack(self) -> None:
        """Pack all logs and records; while they are too many bytes, without the largest."""
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        files.sort(key=lambda path: path.stat().st_size)
        for log in self._folder.glob("*.txt"):
            _shorten(log)
        while len(packed := self._packed(files)) > MOST_BYTES:
            print(f"left out, too large: {files.pop().name}", flush=True)
        with replacing(self._out / KEPT) as file:
            file.write(packed)

    def _packed(self, files: Sequence[Path]) -> bytes:
        memory = io.BytesIO()
        with tarfile.open(fileobj=memory, mode="w:gz") as archive:
            for path in files:
                archive.add(path, path.relative_to(self._folder))
        return memory.getvalue()


def open_desk(step: Step, file: Path, folder: Path, *, small: bool) -> Desk:
    """A desk that knows the GPU of the answers so far."""
    gpu = next((row["gpu"] for row in reversed(rows.read(file)) if row["gpu"]), "")
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
