"""Lines of a log file as plain text, whatever wrote it."""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from dsv4kv.errors import ConfigError

_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE_BYTES = 1 << 20  # an echoed configuration is long, but not that long
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RANK = re.compile(
    r"\((?P<process>[A-Za-z]\w*) pid=\d+\)"  # vLLM: (Worker_TP3 pid=123)
    r"|^\[?[\d\-: .,T]*\b(?P<ranks>(?:(?:DP|TP|PP|EP|ATTN_\w+?)\d+\s?)+)\]"  # SGLang: [… TP0]
)


def read_lines(path: Path) -> Iterator[str]:
    """Yield every line without colours and line ends.

    Plain or gzip-compressed; bytes that are no UTF-8 are replaced; the file is streamed.

    Raises:
        ConfigError: A file that cannot be read.
    """
    try:
        with ExitStack() as stack:
            file = _open(path, stack)
            while raw := file.readline(_LONGEST_LINE_BYTES):
                text = raw.decode("utf-8", errors="replace")
                if "\x1b" in text:
                    text = _ESCAPES.sub("", text)
                yield from text.replace("\r", "\n").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason}): give a start-up log.") from None


def rank_of(line: str) -> str:
    """The process or ranks that a line's prefix names: ``Worker_TP3``, ``DP0 TP1``, or nothing."""
    match = _RANK.search(line[:200])
    return (match["process"] or match["ranks"]).strip() if match else ""


def _open(path: Path, stack: ExitStack) -> IO[bytes]:
    file = stack.enter_context(path.open("rb"))
    magic = file.read(len(_GZIP_MAGIC))
    file.seek(0)
    if magic != _GZIP_MAGIC:
        return file
    return cast(IO[bytes], stack.enter_context(gzip.open(file)))
