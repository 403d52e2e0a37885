"""Rows of JSON on disk, each safe the moment it is written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row; when this returns it is on the disk.

    What a killed writer left of its last row is closed off by a line of its own.
    """
    line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
    with path.open("a+b") as file:
        if file.tell() and not _ends_a_line(file.fileno(), file.tell()):
            line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _ends_a_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"


def read(path: Path) -> list[Row]:
    """All whole rows of a file, if there is one; what a killed writer left unfinished is none."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return list(filter(None, map(_row, lines)))


def _row(line: bytes) -> Row | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
