"""Reading what others wrote: files of what kind, how large, and JSON of what depth.

How long a reader takes follows from how much it reads; nothing is waited for.
"""

import errno
import json
import os
import stat
from io import DEFAULT_BUFFER_SIZE, BufferedReader, FileIO
from pathlib import Path
from typing import Any

from pydantic_core import from_json

DOCUMENT_BYTES = 2**28
"""The largest document that is held as a whole; a few times as much is needed to parse it."""


_MOST_NODES = 2**18  # of a YAML text, each counted wherever it is used


class Unparsable(ValueError):
    """Why a text is no JSON, without a place.

    Attributes:
        line: Where, from 1; 1 where it is not known.
    """

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.line = line


def open_regular(path: Path, buffer_bytes: int = DEFAULT_BUFFER_SIZE) -> BufferedReader:
    """Open a file for reading its bytes; pipes and devices, which need not end, are refused.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    # without O_NONBLOCK opening a pipe waits until somebody writes
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file: BufferedReader = BufferedReader(FileIO(descriptor), buffer_bytes)
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return file


def read_document(path: Path, most_bytes: int = DOCUMENT_BYTES) -> bytes:
    """Read a whole file.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger than ``most_bytes``.
    """
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes / 2**20:g} MiB", str(path))
    return content


def read_json(path: Path, most_bytes: int = DOCUMENT_BYTES) -> Any:
    """Read a JSON document.

    Raises:
        OSError: As ``read_document``.
        Unparsable: As ``parse_json``, or it is no UTF-8.
    """
    try:
        text = read_document(path, most_bytes).decode()
    except UnicodeDecodeError:
        raise Unparsable("not UTF-8, so not JSON") from None
    return parse_json(text)


def parse_json(text: str) -> Any:
    """Parse a JSON document: as ``json.loads`` does, faster where the text is plain.

    Raises:
        Unparsable: It is none, is nested too deeply, or has a number of thousands of digits.
    """
    try:
        return from_json(text)
    except ValueError:
        pass  # lone surrogates, say, which json reads; or a defect, which json reports better
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise explain(error) from None


def load_yaml(text: str) -> list[Any]:
    """The documents of a YAML text, whose aliases and merges do not make it much larger.

    Raises:
        Unparsable: It is none, is nested too deeply, or holds itself.
    """
    import yaml

    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0
            value = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = (part for each in value for part in (each if type(each) is tuple else (each,)))
            sizes[id(node)] = 1 + sum(size(part) for part in parts)
        if not 0 < sizes[id(node)] <= _MOST_NODES:
            raise Unparsable("YAML that holds itself, or many times the same")
        return sizes[id(node)]

    try:
        for node in yaml.compose_all(text, yaml.SafeLoader):
            size(node)
        return list(yaml.safe_load_all(text))
    except RecursionError:
        raise Unparsable("YAML that is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise Unparsable(f"no YAML ({' '.join(str(error).split())[:200]})") from None


def explain(error: ValueError | RecursionError) -> Unparsable:
    """What ``json`` means, in words."""
    if isinstance(error, json.JSONDecodeError):
        return Unparsable(f"broken JSON ({error.msg} at column {error.colno})", error.lineno)
    return Unparsable("unreadable JSON (nested too deeply, or a number of thousands of digits)")


def whole_text(text: str) -> str:
    """The text with ``?`` for halves of characters: JSON can name them, no file can hold them."""
    return text.encode("utf-8", "replace").decode("utf-8")
