"""A sweep as a folder in which every point is a file: to be done, claimed, or done.

    job.json                  what is asked, the same for all who work on it
    todo/00003.json           a point that nobody has taken
    claimed/00003.OWNER.json  the same file, renamed by whoever works on it: for one alone it is
                              there to be renamed
    done/00003.json           what came of it

A worker touches its claims. One whose process has gone, or that was not touched for ``LEASE_S`` by
the clock of the folder's own file system, is renamed back by whoever looks for work. So a killed
worker loses the points that were under way, and no more; a point that two have done after all
has one result, whoever wrote it last.
"""

import hashlib
import json
import os
import platform
import secrets
import shutil
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from pydantic import ValidationError

from dsv4kv.errors import RecordError
from dsv4kv.files import replacing, replacing_folder
from dsv4kv.reading import read_document, read_json
from dsv4kv.record.part import Moment, Part
from dsv4kv.record.schema import Case
from dsv4kv.record.store import DIGEST, POINTS, digest
from dsv4kv.workers import Lost, map_here

LEASE_S = 60.0
"""Seconds after which a claim of another machine that nobody touches is taken back."""
_JOB, _TODO, _CLAIMED, _DONE = "job.json", "todo", "claimed", "done"


class Asked(Part):
    """What all who work on a job must agree about."""

    run_id: str
    """Name of the run that gathers it."""
    started_utc: Moment
    """When it was begun, ISO 8601."""
    command: str
    """``replay`` or ``bench``."""
    version: str
    """Of dsv4kv, with the revision if it runs from a source tree."""
    machine: str | None
    """Digest of the host's name where points are timed; null where any machine gives the same."""
    config_source: str
    """Path or name of the configuration file."""
    config_sha256: str
    """Digest of its text, before overrides."""
    overrides: list[str]
    """``a.b=c`` options in effect."""
    axes: list[str]
    """``a.b=1,2`` options."""
    traces_sha256: dict[str, str]
    """Digest of every trace, by its name."""
    points_sha256: str
    """Digest of all points' whole configurations."""
    count: int
    """Points."""


_AGREE = {
    "command": "another command",
    "version": "another version of dsv4kv",
    "machine": "another machine, and its points are timed",
    "config_sha256": "another text of the configuration",
    "traces_sha256": "another trace",
    "points_sha256": "other settings or axes",
}


def hash_points(configs: Sequence[dict[str, Any]]) -> str:
    """Digest of the whole configurations of all points, in order."""
    return digest({"points": list(configs)})


def find_job(run: str, out: Path) -> Path:
    """Folder of a run by its name, its record or itself.

    Raises:
        RecordError: There is none.
    """
    named = Path(run)
    if (named / _JOB).is_file():
        return named
    name = named.name.removesuffix(".json").removesuffix(POINTS)
    folders = [named.with_suffix(POINTS), out / f"{name}{POINTS}"]
    for folder in folders:
        if (folder / _JOB).is_file():
            return folder
    raise RecordError(
        f"--resume {run}: no points are kept in {folders[-1]}: it was no sweep, or it is whole, "
        f"and its record has them. Name a run of {out}, or its folder."
    )


def read_asked(folder: Path) -> Asked:
    """What a job asks for; raises ``RecordError``."""
    path = folder / _JOB
    try:
        return Asked.model_validate_json(read_document(path))
    except FileNotFoundError:
        raise RecordError(f"{folder} holds other files and no job: name a new folder.") from None
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no job of this dsv4kv"
        raise RecordError(f"{path} cannot be read ({reason}).") from None


@dataclass(frozen=True)
class Unfinished:
    """A sweep whose record is not whole: somebody works on it, or it was killed.

    Attributes:
        asked: What it asks for.
        done: Points that are.
    """

    asked: Asked
    done: int


def list_unfinished(out: Path) -> list[Unfinished]:
    """Sweeps of a folder of records, by name; what cannot be read is left out."""
    found = []
    for path in sorted(out.glob(f"*{POINTS}/{_JOB}")):
        with suppress(RecordError):
            done = sum(1 for _ in (path.parent / _DONE).glob("*.json"))
            found.append(Unfinished(read_asked(path.parent), done))
    return found


def open_job(folder: Path, asked: Asked, axes: Sequence[dict[str, Any]]) -> "Job":
    """Begin a job in a new folder, or join the one that is there.

    Raises:
        RecordError: The folder cannot be written, or its job is another.
    """
    if not folder.exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with replacing_folder(folder) as new:
                for part in (_TODO, _CLAIMED, _DONE):
                    (new / part).mkdir()
                for number, axis in enumerate(axes):
                    (new / _TODO / _name(number)).write_text(json.dumps(axis) + "\n")
                (new / _JOB).write_text(asked.model_dump_json(indent=1) + "\n")
        except OSError as error:
            if not folder.exists():  # else another worker was faster
                raise RecordError(f"{folder} cannot be written ({error.strerror}).") from None
    there = read_asked(folder)
    for field, what in _AGREE.items():
        if getattr(there, field) != getattr(asked, field):
            raise RecordError(
                f"{folder} is of {what} ({_shown(there, field)}, now {_shown(asked, field)}): go "
                "on with what it was begun with, or begin a new sweep."
            )
    job = Job(folder, there)
    job.put_back(axes)
    return job


def _shown(asked: Asked, field: str) -> str:
    value = getattr(asked, field)
    if isinstance(value, dict):
        return ", ".join(f"{name} {sha[:12]}" for name, sha in value.items()) or "none"
    return str(value)[:12] if field.endswith("sha256") or field == "machine" else str(value)


def _name(number: int) -> str:
    return f"{number:05}.json"


class Job:
    """A worker's view of a job; its claims are given back when the block ends.

    Attributes:
        folder: Where it is.
        asked: What it is.
    """

    def __init__(self, folder: Path, asked: Asked) -> None:
        """Take part in it."""
        self.folder, self.asked = folder, asked
        self._owner = f"{_place()}-{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(3)}"
        self._tried: set[int] = set()
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._touch_claims, daemon=True)

    def __enter__(self) -> Self:
        self._keeper.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        with suppress(OSError):  # whoever looks for work takes them back
            for claim in self._points(_CLAIMED):
                if _owner_of(claim) == self._owner:
                    self._give_back(claim)

    def claims(self) -> Iterator[int]:
        """Take points, each when it is asked for, until there is none to take.

        Raises:
            RecordError: The folder cannot be written.
        """
        while (number := self._claim()) is not None:
            yield number

    def keep(self, number: int, case: Case) -> None:
        """Write down what came of a point, so that no kill loses it.

        Raises:
            RecordError: The folder cannot be written.
        """
        document = {"case": case.model_dump(mode="json")}
        text = json.dumps(document | {DIGEST: digest(document)}, allow_nan=False)
        with self._writing(), replacing(self._done(number)) as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        self._claimed(number).unlink(missing_ok=True)

    def finished(self) -> dict[int, Case]:
        """What came of every point that is done, by its number.

        Raises:
            RecordError: A file of them was changed or cut short.
        """
        return {int(path.stem): _read(path) for path in self._points(_DONE)}

    def unclaimed(self) -> int:
        """Points that nobody works on and nobody has done."""
        return len(self._points(_TODO))

    def left(self) -> int:
        """Points that are not done."""
        return self.asked.count - len(self._points(_DONE))

    def put_back(self, axes: Sequence[dict[str, Any]]) -> None:
        """Free points that are nowhere any more, as where a file that was damaged was removed.

        Empty folders are made again: not every copy of a folder has them.

        Raises:
            RecordError: The folder cannot be written.
        """
        missing = set(range(self.asked.count))
        for part in (_TODO, _CLAIMED, _DONE):  # as points go, so that none is missed on its way
            missing -= {int(path.name.partition(".")[0]) for path in self._points(part)}
        with self._writing():
            for part in (_TODO, _CLAIMED, _DONE):
                (self.folder / part).mkdir(exist_ok=True)
        for number in missing:
            with self._writing(), replacing(self.folder / _TODO / _name(number)) as file:
                file.write(f"{json.dumps(axes[number])}\n".encode())

    def remove(self) -> None:
        """Remove the folder: its points are in a record."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say that the folder cannot be written, and what is not lost."""
        try:
            yield
        except OSError as error:
            raise RecordError(
                f"{self.folder} cannot be written ({error.strerror}). Of {self.asked.count:,} "
                f"points {self.asked.count - self.left():,} are done and stay there: make room, "
                "or let it be written, and go on with the same command, for a run of your own "
                "with --resume."
            ) from None

    def _claim(self) -> int | None:
        with self._writing():
            return self._claim_one()

    def _claim_one(self) -> int | None:
        self._take_back()
        for path in self._points(_TODO):
            number = int(path.stem)
            if number in self._tried:
                continue
            with suppress(FileNotFoundError):  # another was faster
                if self._done(number).exists():
                    path.unlink()
                    continue
                os.utime(path)
                path.rename(self._claimed(number))
                self._tried.add(number)
                return number
        return None

    def _take_back(self) -> None:
        """Give back claims of those who are gone."""
        now_s = self._now_s()
        for claim in self._points(_CLAIMED):
            with suppress(FileNotFoundError):
                if _is_gone(_owner_of(claim)) or now_s - claim.stat().st_mtime > LEASE_S:
                    self._give_back(claim)

    def _give_back(self, claim: Path) -> None:
        name = claim.name.partition(".")[0]
        with suppress(FileNotFoundError):
            if self._done(int(name)).exists():
                claim.unlink()
            else:
                claim.rename(self.folder / _TODO / f"{name}.json")

    def _touch_claims(self) -> None:
        while not self._ended.wait(LEASE_S / 4):
            for claim in self._points(_CLAIMED):
                if _owner_of(claim) == self._owner:
                    with suppress(OSError):  # it was taken back
                        os.utime(claim)

    def _now_s(self) -> float:
        """The time by the clock that stamps the files."""
        with suppress(OSError):
            os.utime(self.folder / _JOB)
        return (self.folder / _JOB).stat().st_mtime

    def _points(self, part: str) -> list[Path]:
        """Files of points, without those that a killed worker has not finished writing."""
        return sorted((self.folder / part).glob("[0-9]*"))

    def _claimed(self, number: int) -> Path:
        return self.folder / _CLAIMED / f"{number:05}.{self._owner}.json"

    def _done(self, number: int) -> Path:
        return self.folder / _DONE / _name(number)


def _read(path: Path) -> Case:
    try:
        document = read_json(path)
        found = document.pop(DIGEST)
        if found != digest(document):
            raise ValueError("its digest is not that of its values")
        return Case.model_validate(document["case"], strict=True)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise RecordError(
            f"{path} is not what was written there ({reason}): remove it and its point is done "
            "again."
        ) from None


def _owner_of(claim: Path) -> str:
    return claim.name.split(".")[1]


@cache
def _place() -> str:
    """Where ids of processes are unique: a machine since it started, or a container."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _started(pid: int) -> int:
    """When a process began, in seconds; 0 where there is none, or nobody has buried it yet."""
    try:
        process = psutil.Process(pid)
        return 0 if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time())
    except psutil.Error:
        return 0


def _is_gone(owner: str) -> bool:
    """Whether it is known that a claim's process has ended."""
    place, pid, started, _ = owner.split("-")
    return place == _place() and abs(_started(int(pid)) - int(started)) > 1


Mapper = Callable[[Callable[[int], Case], Iterator[int]], Generator[tuple[int, Case | Lost]]]
"""One of ``dsv4kv.workers``: who does the points."""


@dataclass(frozen=True)
class Sweep:
    """How points are done.

    Attributes:
        map: Who does them.
        job: Keeps what is done; None where there is one point.
        together: Whether several are done at once.
    """

    map: Mapper
    job: Job | None = None
    together: bool = False


HERE = Sweep(map_here)
"""One point after the other, none of them kept."""


def run_points(
    sweep: Sweep,
    count: int,
    work: Callable[[int], Case],
    lost: Callable[[int, str], Case] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Case]:
    """Do every point that is not done yet; Ctrl-C ends with those that are, if there are any.

    Args:
        sweep: How.
        count: Points, which are numbered from 0.
        work: Does one.
        lost: Makes a case of one whose worker was lost, and why; None where there are no workers.
            It is not kept: whoever resumes tries it again.
        on_progress: Hears how many of how many are done, where several are done at once.
    """
    job = sweep.job
    cases = job.finished() if job else {}
    numbers = job.claims() if job else iter(range(count))
    try:
        with closing(sweep.map(work, numbers)) as results:
            for number, case in results:
                if isinstance(case, Lost):
                    assert lost is not None
                    cases[number] = lost(number, case.why)
                else:
                    cases[number] = case
                    if case.status == "incomplete":
                        break
                    if job:
                        job.keep(number, case)
                if sweep.together and on_progress:
                    on_progress(len(cases), count)
    except KeyboardInterrupt:
        if not cases:
            raise
    if job:
        cases |= job.finished()  # of others, too
    return [cases[number] for number in sorted(cases)]
