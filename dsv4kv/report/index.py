"""The index of a folder of records: what each is, without reading them all again.

The files are the truth and the index only remembers them. An entry counts while its file has the
size and time it had; everything else is read again, and so is what could not be read: the reason
may be gone, as with a newer dsv4kv, and the file as it was. So an index that is missing, old, cut
short, or written by two programs at once costs time and nothing more, and if it cannot be written
it is made again next time.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from dsv4kv.errors import RecordError
from dsv4kv.files import replacing
from dsv4kv.report.part import Moment, Part
from dsv4kv.report.record import RunRecord
from dsv4kv.report.store import load_record

INDEX = ".index.json"


class Summary(Part):
    """What a list tells of a record."""

    run_id: str
    """Name of the run."""
    started_utc: Moment
    """Start, ISO 8601."""
    status: str
    """Worst status of its cases."""
    config: str
    """Path or name of the configuration."""
    backends: list[str]
    """Operations that ran, each once."""
    cases: int
    """Points of the sweep."""
    launches: int
    """Fresh processes; 1 where the run was one process."""
    git_sha: str | None
    """Revision that ran."""


class Entry(Part):
    """A file of the folder."""

    file: str
    """Name in the folder."""
    size_bytes: int
    """Size when it was read."""
    modified_ns: int
    """Time of its last change when it was read."""
    summary: Summary | None
    """What it holds; null if it is no record."""
    problem: str | None
    """Why it cannot be read."""


class Index(Part):
    """The file itself."""

    entries: list[Entry]
    """One per file, by name."""


def list_entries(folder: Path) -> list[Entry]:
    """Every ``.json`` file of a folder, by name, so by time; reads only what has changed.

    Raises:
        RecordError: The folder cannot be read.
    """
    known = {entry.file: entry for entry in _read_index(folder)}
    entries = [_entry(file, known.get(file.name)) for file in _list_files(folder)]
    found = [entry for entry in entries if entry]
    if found != list(known.values()):
        _write_index(folder, found)
    return found


def _list_files(folder: Path) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as files:
            found = [
                file
                for file in files
                if file.name.endswith(".json") and file.name[0] != "." and file.is_file()
            ]
        return sorted(found, key=lambda file: file.name)
    except OSError as error:
        raise RecordError(
            f"{folder} cannot be read ({error.strerror}): name a folder of records."
        ) from None


def _entry(file: "os.DirEntry[str]", known: Entry | None) -> Entry | None:
    try:
        facts = file.stat()
    except FileNotFoundError:  # another program has removed it meanwhile
        return None
    if (
        known
        and known.summary
        and (known.size_bytes, known.modified_ns) == (facts.st_size, facts.st_mtime_ns)
    ):
        return known
    summary, problem = None, None
    try:
        summary = _summarize(load_record(Path(file.path)))
    except RecordError as error:
        problem = str(error)
    return Entry(
        file=file.name,
        size_bytes=facts.st_size,
        modified_ns=facts.st_mtime_ns,
        summary=summary,
        problem=problem,
    )


def _summarize(record: RunRecord) -> Summary:
    return Summary(
        run_id=record.run_id,
        started_utc=record.started_utc,
        status=record.status,
        config=record.config_source,
        backends=list(dict.fromkeys(case.backend for case in record.cases)),
        cases=len({json.dumps(case.axis, sort_keys=True) for case in record.cases}),
        launches=len(record.launches) or 1,
        git_sha=record.environment.git_sha,
    )


def _read_index(folder: Path) -> list[Entry]:
    """Entries of the index; none if it is missing, damaged, or of another version."""
    try:
        return Index.model_validate_json((folder / INDEX).read_bytes()).entries
    except (OSError, ValidationError):
        return []


def _write_index(folder: Path, entries: Iterable[Entry]) -> None:
    try:
        with replacing(folder / INDEX) as file:
            file.write(Index(entries=list(entries)).model_dump_json(indent=1).encode())
    except OSError:
        pass  # a folder that is read-only, or full: the next list reads the files again
