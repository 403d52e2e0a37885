"""Baselines: records kept under a name, to be compared with later runs."""

import re
from pathlib import Path

from dsv4kv.compare.side import Side
from dsv4kv.errors import ConfigError, RecordError
from dsv4kv.files import replacing
from dsv4kv.report.store import dumps, load_record

FOLDER = "baselines"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def save_baseline(side: Side, name: str, results: Path) -> Path:
    """Keep the record of a side as a baseline; one of that name is replaced whole.

    Raises:
        ConfigError: A name that is no file name, or a side of several records.
        RecordError: The folder cannot be written.
    """
    if len(side.records) != 1:
        raise ConfigError(
            f"--save-baseline {name}: {side.name} is {len(side.records)} records and a baseline "
            "is one: measure it in one run with `dsv4kv bench --launches 7`."
        )
    path = _path(name, results)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(dumps(side.records[0]).encode())
    except OSError as error:
        raise RecordError(
            f"--save-baseline {name}: {path} cannot be written ({error.strerror})."
        ) from None
    return path


def load_baseline(name: str, results: Path) -> Side:
    """Read a baseline.

    Raises:
        ConfigError: None of that name.
        RecordError: It cannot be read.
    """
    path = _path(name, results)
    if not path.is_file():
        names = list_baselines(results)
        raise ConfigError(
            f"--baseline {name}: {path.parent} has {', '.join(names) or 'none'}: save one with "
            f"`dsv4kv compare RUN.json --save-baseline {name}`."
        )
    return Side(name, (load_record(path),))


def list_baselines(results: Path) -> list[str]:
    """Names of the baselines, sorted."""
    return sorted(path.stem for path in (results / FOLDER).glob("*.json"))


def check_name(name: str) -> None:
    """Whether a baseline may have that name.

    Raises:
        ConfigError: It may not.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name for a baseline: letters, digits, dots, hyphens and underscores."
        )


def _path(name: str, results: Path) -> Path:
    check_name(name)
    return results / FOLDER / f"{name}.json"
