"""Run records as files: written whole or not at all, read with a sentence when they cannot be.

The last line of a file is a digest of the rest. It is of the values, not of the text, so that a
record may be laid out anew; what a hand has changed is refused.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from dsv4kv.errors import RecordError
from dsv4kv.files import replacing, temporary_place
from dsv4kv.reading import read_document
from dsv4kv.report.record import SCHEMA_VERSION, RunRecord

DIGEST = "content_sha256"


@dataclass(frozen=True)
class Saved:
    """Where a record lies, and why it is not where it was asked to be (None if it is)."""

    path: Path
    problem: str | None


def save_record(record: RunRecord, folder: Path) -> Saved:
    """Write ``folder/RUN_ID.json``, or, if that fails, into the system's temporary folder.

    Raises:
        RecordError: Neither folder can be written.
    """
    text = dumps(record)
    try:
        return Saved(_write(text, record.run_id, folder), None)
    except OSError as error:
        refused = f"{folder} cannot be written ({error.strerror})"
    try:
        path = _write(text, record.run_id, temporary_place())
    except OSError as error:
        raise RecordError(
            f"{refused}, nor can the temporary folder ({error.strerror}): free some space, or set "
            "TMPDIR to a folder that can be written."
        ) from error
    return Saved(path, f"{refused}: the record is saved in {path.parent} instead.")


def load_record(path: Path) -> RunRecord:
    """Read a record from a file.

    Raises:
        RecordError: No such file, not a whole run record, changed since it was written, or of a
            version this program does not know.
    """
    return loads(_read(path), str(path))


def loads(text: str, name: str) -> RunRecord:
    """Read a record from its text; ``name`` says in errors where that came from.

    Raises:
        RecordError: As ``load_record``.
    """
    document = _parse(text, name)
    if not isinstance(document, dict) or "schema_version" not in document:
        raise RecordError(f"{name} is JSON but not a run record: it has no schema_version.")
    if document["schema_version"] != SCHEMA_VERSION:
        raise RecordError(
            f"{name} has schema version {document['schema_version']!r}; this dsv4kv reads version "
            f"{SCHEMA_VERSION}: show it with the dsv4kv that wrote it, or update dsv4kv."
        )
    _check_digest(document, name)
    try:
        return RunRecord.model_validate(document, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise RecordError(
            f"{name} is not a whole run record: {where}: {first['msg']}{more}."
        ) from None


def dumps(record: RunRecord) -> str:
    """JSON text of a record: one value a line, and every list of samples on one line.

    Raises:
        ValueError: A value that JSON has no word for (NaN, infinity).
    """
    document = record.model_dump(mode="json")
    return _layout(document | {DIGEST: digest(document)}, "\n") + "\n"


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of a document without its digest: of the values, however they are laid out."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_digest(document: dict[str, Any], name: str) -> None:
    """Take the digest out of the document and compare; the first records have none.

    Those are told by what came to records after the digest: ``launches``.
    """
    found = document.pop(DIGEST, None)
    if found is None and "launches" in document:
        raise RecordError(
            f"{name} has no {DIGEST}, which dsv4kv writes: it was changed by hand or cut short. "
            "Take the file as dsv4kv wrote it."
        )
    if found is not None and found != digest(document):
        raise RecordError(
            f"{name} was changed after it was written: its {DIGEST} is not that of its values. "
            "Take the file as dsv4kv wrote it."
        )


def _layout(value: Any, newline: str) -> str:
    inner = newline + " "
    if isinstance(value, dict) and value:
        items = [f"{json.dumps(key)}: {_layout(value[key], inner)}" for key in value]
        return "{" + inner + ("," + inner).join(items) + newline + "}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[" + inner + ("," + inner).join(_layout(v, inner) for v in value) + newline + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _write(text: str, run_id: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run_id}.json"
    with replacing(path) as file:
        file.write(text.encode())
    return path


def _read(path: Path) -> str:
    try:
        return read_document(path).decode()
    except FileNotFoundError:
        raise RecordError(
            f"{path} does not exist: name a file that `dsv4kv bench` saved, as results/RUN.json."
        ) from None
    except IsADirectoryError:
        raise RecordError(f"{path} is a folder: name one of the .json files in it.") from None
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise RecordError(_no_record(str(path))) from None


def _parse(text: str, name: str) -> Any:
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:  # halves of a character, which no text can have
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{name}:{error.lineno}: not JSON ({error.msg}): the file is damaged or cut short, or "
            "it is not a run record."
        ) from None
    except (ValueError, RecursionError):  # NaN, a number of thousands of digits, endless nesting
        raise RecordError(_no_record(name)) from None


def _no_record(name: str) -> str:
    return f"{name} is not a run record: name a .json file of `dsv4kv bench`."


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
