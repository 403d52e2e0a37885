"""Files that appear whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[BufferedWriter]:
    """Open a neighbour of ``path`` that takes its place if the block succeeds.

    Raises:
        OSError: The folder cannot be written, or ``path`` is one.
    """
    if not path.name:  # "." and "/", beside which no neighbour can be named
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with unfinished.open("xb") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
