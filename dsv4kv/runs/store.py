"""Run records as files: written whole or not at all, read with a sentence when they cannot be.

The last line of a file is a digest of the rest. It is of the values, not of the text, so that a
record may be laid out anew; what a hand has changed is refused.
"""

import hashlib
import json
import re
import secrets
import stat
import tempfile
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from dsv4kv.errors import RecordError, first_problem
from dsv4kv.files import check_parts, make_folder, read_document, replacing, whole_json
from dsv4kv.runs.parts import Moment, Part, RunId
from dsv4kv.runs.schema import SCHEMA_VERSION, RunRecord

DIGEST = "content_sha256"
POINTS = ".points.jsonl"  # ends the name of an unfinished sweep's file, next to its record
_MOST_INTEGER = 2**256  # whose square a float can hold
_DROPPED = {
    "evicted_objects", "good_output_tokens", "orphaned_checkpoints", "read_ns", "read_operations",
    "restored_requests", "resumed_requests", "sending_ns", "write_ns", "write_operations",
}  # fmt: skip


@dataclass(frozen=True)
class Saved:
    """Where a record is, and why it is not where it was asked to be (None if it is)."""

    path: Path
    problem: str | None


def save_record(record: RunRecord, folder: Path) -> Saved:
    """Write ``folder/RUN_ID.json``, or into the temporary folder; raises ``RecordError``."""
    content, name, reasons = dumps(record).encode(), f"{record.run_id}.json", list[str]()
    for place in (folder, Path(tempfile.gettempdir())):
        try:
            make_folder(place)
            with replacing(place / name) as file:
                file.write(content)
        except OSError as error:
            reasons.append(f"{error.strerror}")
        else:
            instead = f"the record is saved in {place} instead."
            problem = f"{folder} cannot be written ({reasons[0]}): {instead}" if reasons else None
            return Saved(place / name, problem)
    raise RecordError(
        f"{folder} cannot be written ({reasons[0]}), nor can the temporary folder ({reasons[1]}): "
        "free some space, or set TMPDIR to a folder that can be written."
    )


def load_record(path: Path) -> RunRecord:
    """Read a record from a file; ``RecordError`` as ``loads``, or where it cannot be read."""
    return loads(_read(path), str(path))


def loads(text: str, name: str) -> RunRecord:
    """Read a record from its text, which is ``name`` in errors; raises ``RecordError``."""
    document = _read_document(text, name)
    found = document.pop(DIGEST, None)
    if found is None and "launches" in document:  # the first records have neither
        raise RecordError(
            f"{name} has no {DIGEST}, which dsv4kv writes: it was changed by hand or cut short. "
            "Take the file as dsv4kv wrote it."
        )
    try:
        changed = found is not None and found != digest(document)
    except ValueError:  # a number above 1.8e308, which dsv4kv never writes
        changed = True
    if changed:
        raise RecordError(
            f"{name} was changed after it was written: its {DIGEST} does not match its values. "
            "Take the file as dsv4kv wrote it."
        )
    if document["schema_version"] == 1:
        document = _without(document, _DROPPED) | {"schema_version": SCHEMA_VERSION}
    try:
        return RunRecord.model_validate(document, strict=True)
    except ValidationError as error:
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise RecordError(
            f"{name} is not a whole run record: {first_problem(error.errors())}{more}."
        ) from None


def _read_document(text: str, name: str) -> dict[str, Any]:
    try:
        check_parts(text)
        # int refuses NaN and infinities
        document: Any = json.loads(text, parse_constant=int, parse_int=read_int)
        if "\\u" in text:  # halves of a character, which no text can have
            json.dumps(document, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{name}:{error.lineno}: not JSON ({error.msg}): the file is damaged or cut short, or "
            "it is not a run record."
        ) from None
    except (ValueError, RecursionError):  # NaN, a number of thousands of digits, endless nesting
        raise RecordError(_no_record(name)) from None
    if not isinstance(document, dict) or "schema_version" not in document:
        raise RecordError(f"{name} is JSON but not a run record: it has no schema_version.")
    if document["schema_version"] not in (1, SCHEMA_VERSION):
        raise RecordError(
            f"{name} has schema version {document['schema_version']!r}; this dsv4kv reads "
            f"versions 1 and {SCHEMA_VERSION}: show "
            f"it with the dsv4kv that wrote it, or update dsv4kv."
        )
    return document


def _without(value: Any, names: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(each, names) for key, each in value.items() if key not in names}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_without(each, names) for each in value]
    return value


def dumps(record: RunRecord) -> str:
    """JSON text of a record: one value a line, and every list of samples on one line."""
    document = whole_json(record.model_dump(mode="json"))
    return _layout(document | {DIGEST: digest(document)}, "\n") + "\n"


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of a document without its digest: of the values, however they are laid out."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _layout(value: Any, newline: str) -> str:
    inner = newline + " "
    if isinstance(value, dict) and value:
        items = [f"{json.dumps(key)}: {_layout(value[key], inner)}" for key in value]
        return "{" + inner + ("," + inner).join(items) + newline + "}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[" + inner + ("," + inner).join(_layout(v, inner) for v in value) + newline + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _read(path: Path) -> str:
    try:
        return read_document(path).decode()
    except OSError as error:
        raise RecordError(
            f"{path} cannot be read ({error.strerror}): name a file that `dsv4kv bench` saved, as "
            "results/RUN.json."
        ) from None
    except UnicodeDecodeError:
        raise RecordError(_no_record(str(path))) from None


def _no_record(name: str) -> str:
    return f"{name} is not a run record: name a .json file of `dsv4kv bench`."


def read_int(digits: str) -> int:
    """An integer of JSON; raises ``ValueError`` for one that no run can have."""
    number = int(digits)
    if abs(number) >= _MOST_INTEGER:
        raise ValueError(digits)
    return number


class Summary(Part):
    """What a list shows of a record; ``cases`` are points of the sweep."""

    run_id: RunId
    started_utc: Moment
    status: str
    config: str
    backends: list[str] = Field(default_factory=list)
    cases: int
    launches: int = 1
    git_sha: str | None = None


class Entry(Part):
    """A file of a folder of records: what it holds, or why it is no record that can be read."""

    file: str
    size_bytes: int
    modified_ns: int
    summary: Summary | None
    problem: str | None


def list_entries(folder: Path) -> list[Entry]:
    """Every ``.json`` file of a folder by name, so by time; not validated. ``RecordError``."""
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise RecordError(
            f"{folder} cannot be read ({error.strerror}): name a folder of records."
        ) from None
    found = []
    for file in files:
        if file.suffix != ".json" or file.name.startswith("."):
            continue
        with suppress(OSError):  # a link in a circle, or removed since
            if not stat.S_ISREG(file.stat().st_mode):
                continue
            summary, problem, facts = None, None, file.stat()
            try:
                summary = _summarize(_read_document(_read(file), str(file)))
            except RecordError as error:
                problem = str(error)
            except (AttributeError, KeyError, TypeError, ValueError):
                problem = _no_record(str(file))
            found.append(
                Entry(
                    file=file.name,
                    size_bytes=facts.st_size,
                    modified_ns=facts.st_mtime_ns,
                    summary=summary,
                    problem=problem,
                )
            )
    return found


def _summarize(document: dict[str, Any]) -> Summary:
    cases = document["cases"]
    return Summary(
        run_id=document["run_id"],
        started_utc=document["started_utc"],
        status=document["status"],
        config=document["config_source"],
        backends=list(dict.fromkeys(case["backend"] for case in cases)),
        cases=len({json.dumps(case["axis"], sort_keys=True) for case in cases}),
        launches=len(document.get("launches", ())) or 1,
        git_sha=document["environment"]["git_sha"],
    )


def new_run_id(name: str, now: datetime) -> str:
    """Unique name of a run, sorted by time: ``20261121T041903Z-default-3fa9c1``."""
    safe_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip("-.") or "run"
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{safe_name}-{secrets.token_hex(3)}"
