"""Files and folders that appear whole or not at all."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

from dsv4kv.errors import ConfigError


@contextmanager
def replacing(path: Path) -> Iterator[BufferedWriter]:
    """Open a neighbour of ``path`` that takes its place if the block succeeds.

    Raises:
        OSError: The folder cannot be written, or ``path`` is one.
    """
    unfinished = _neighbour(path)
    try:
        with unfinished.open("xb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Make a folder beside ``path`` that takes its place if the block succeeds.

    Raises:
        OSError: It cannot be written, or ``path`` is a file or a folder that is not empty.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise OSError(errno.ENOTEMPTY, "there is something already", str(path))
    unfinished = _neighbour(path)
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_named(path: Path, text: str, option: str) -> None:
    """Write a file that an option named.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: cannot be written ({error.strerror or error}): name a file in a "
            "folder that exists."
        ) from None


def _neighbour(path: Path) -> Path:
    if not path.name:  # "." and "/", beside which no neighbour can be named
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
