"""Run records as files: written whole or not at all, read with a sentence when they cannot be."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from dsv4kv.errors import RecordError
from dsv4kv.files import replacing
from dsv4kv.report.record import SCHEMA_VERSION, RunRecord


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
        path = _write(text, record.run_id, Path(tempfile.gettempdir()))
    except OSError as error:
        raise RecordError(
            f"{refused}, nor can the temporary folder ({error.strerror}): free some space, or set "
            "TMPDIR to a folder that can be written."
        ) from error
    return Saved(path, f"{refused}: the record is saved in {path.parent} instead.")


def load_record(path: Path) -> RunRecord:
    """Read a record.

    Raises:
        RecordError: No such file, not a run record, or a version this program does not know.
    """
    document = _parse(path)
    if not isinstance(document, dict) or "schema_version" not in document:
        raise RecordError(f"{path} is JSON but not a run record: it has no schema_version.")
    if document["schema_version"] != SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema version {document['schema_version']!r}; this dsv4kv reads version "
            f"{SCHEMA_VERSION}: show it with the dsv4kv that wrote it, or update dsv4kv."
        )
    try:
        return RunRecord.model_validate(document, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise RecordError(
            f"{path} is not a whole run record: {where}: {first['msg']}{more}."
        ) from None


def dumps(record: RunRecord) -> str:
    """JSON text of a record: one value a line, and every list of samples on one line.

    Raises:
        ValueError: A value that JSON has no word for (NaN, infinity).
    """
    return _layout(record.model_dump(mode="json"), "\n") + "\n"


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


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise RecordError(
            f"{path} does not exist: name a file that `dsv4kv bench` saved, as results/RUN.json."
        ) from None
    except IsADirectoryError:
        raise RecordError(f"{path} is a folder: name one of the .json files in it.") from None
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}).") from None
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{path}:{error.lineno}: not JSON ({error.msg}): the file is damaged or cut short, or "
            "it is not a run record."
        ) from None
    except (ValueError, RecursionError):  # not UTF-8, NaN, or nested without end
        raise RecordError(
            f"{path} is not a run record: name a .json file of `dsv4kv bench`."
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
