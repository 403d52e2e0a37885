"""Files: shipped with the package, read from others, and written whole or not at all.

``configs/``, ``kernels/`` and ``results/sass/`` are next to the package in a source tree and
inside it in an installed wheel. A reader never waits: it opens regular files only.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from gzip import BadGzipFile, GzipFile
from io import BufferedReader, BufferedWriter, BytesIO, FileIO, RawIOBase
from itertools import islice
from pathlib import Path
from typing import Any, cast

import yaml
from platformdirs import user_cache_path, user_data_path

from dsv4kv.errors import ConfigError, mask_secrets


@contextmanager
def replacing(path: Path, mode: int = 0o666, *, follow: bool = False) -> Iterator[BufferedWriter]:
    """Open a file that takes the place of ``path`` if the block succeeds; raises ``OSError``.

    It has no name before that where the system can do so (Linux, most file systems): a process
    that is killed leaves nothing. Elsewhere it is a neighbour of ``path``. A device or a pipe
    stays and is written to, and with ``follow`` a link. ``mode`` is less the umask.
    """
    path = _behind_links(path) if follow else path
    if _is_special(path):
        # a pipe that nobody reads is refused: opening it would wait for somebody
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        return
    unfinished, unnamed = _neighbour(path), _open_unnamed(path.parent, mode)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        with os.fdopen(unnamed or os.open(unfinished, flags, mode), "wb") as file:
            yield file
            file.flush()
            if unnamed:
                # with a folder, which an absolute path does not need, links are followed
                os.link(f"/proc/self/fd/{unnamed}", unfinished, src_dir_fd=unnamed)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _behind_links(path: Path) -> Path:
    """The file that an output's name leads to: a link stays, ``/dev/stdout`` of the system too."""
    return Path(os.path.realpath(path)) if path.is_symlink() and not _is_special(path) else path


def check_file(path: Path) -> None:
    """Raise the ``OSError`` that ``replacing`` would, as far as is known; writes nothing."""
    path = _behind_links(path)
    if _is_special(path):
        _check_access(path, os.W_OK)
    elif path.is_dir() or not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    else:
        _check_place(path.parent)


def check_folder(path: Path) -> Path:
    """Where a folder is or will be made; raises the ``OSError`` that files in it would."""
    while not os.path.lexists(path) and path.name:
        path = path.parent
    _check_place(path)
    return path


def _check_place(folder: Path) -> None:
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    _check_access(folder, os.W_OK | os.X_OK)


def _check_access(path: Path, mode: int) -> None:
    if not os.access(path, mode):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        code = errno.EROFS if read_only else errno.EACCES
        raise OSError(code, os.strerror(code), str(path))


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def refused_by(
    option: str, path: Path, instead: str = "name a file in a folder that exists"
) -> Iterator[None]:
    """Turn an ``OSError`` of a file that an option named into a ``ConfigError`` with advice."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            instead = "make room, or name a place on another disk"
        raise ConfigError(
            f"{option} {path}: cannot be written ({error.strerror or error}): {instead}."
        ) from None


def write_named(path: Path, text: str, option: str) -> None:
    """Write a file that an option named; ``ConfigError`` where it cannot be written."""
    with refused_by(option, path), replacing(path, follow=True) as file:
        file.write(whole_text(text).encode())


@contextmanager
def temporary_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """A new folder for this user alone, in ``within`` or where temporary files are kept."""
    folder = Path(within or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
    try:  # before it is made: Ctrl-C may come at once
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open_unnamed(folder: Path, mode: int) -> int | None:
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY, mode)
    except OSError:  # not of this file system; a folder that cannot be written says so once more
        return None


def _neighbour(path: Path) -> Path:
    if not path.name:  # "." and "/", next to which no neighbour can be named
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


DOCUMENT_BYTES = 2**28  # of a document that is held as a whole; parsing takes a few times that


_MOST_VALUES = 2**24  # of a JSON text: 256 MiB of measured times have less
_MOST_PARTS = 2**21  # lists and objects of a JSON text; all requests of a benchmark have less
_PART = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+\\?"?|([\[{])', re.DOTALL)  # or a string
_MOST_NODES = 2**18  # of a YAML text, each counted wherever it is used
_NODE_CHARACTERS = 64  # of a text, which weighs as many nodes as it has times these
_LONGEST_INTEGER = 256  # characters in YAML, of base 60 or 16, too: still within a float's range


class Unparsable(ValueError):
    """Why a text is no JSON; ``line`` says where, from 1, and is 1 where it is not known."""

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.line = line


def open_regular(path: Path, *, pipes: bool = False) -> BufferedReader:
    """Open a file for reading; ``OSError`` for devices, and pipes unless they are read as well."""
    # without O_NONBLOCK opening a pipe waits until somebody writes
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    mode = found.st_mode
    if pipes and stat.S_ISFIFO(mode):
        os.set_blocking(descriptor, True)  # a pipe that nobody writes to has ended
    elif not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    # some files of /proc have no size and block until there is something to read
    return BufferedReader(FileIO(descriptor) if found.st_size else _Ready(descriptor))


class _Ready(FileIO):
    def readinto(self, buffer: Any) -> int:
        found: int | None = super().readinto(buffer)
        if found is None:
            raise BlockingIOError(errno.EAGAIN, "there is nothing to read yet")
        return found

    readall = RawIOBase.readall  # by ``readinto``


_PACKED = 200  # bytes of one in a gzip file at most: traces of long equal prompts have 120
_SPARED_BYTES = 2**22  # that a small file may have in any case
_PIECE_BYTES = 2**20  # that are unpacked at once


class _Packed(GzipFile):
    """A gzip file that is no bomb: of what is read so far, ``BadGzipFile`` where it is one."""

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(min(size, _PIECE_BYTES) if size and size > 0 else _PIECE_BYTES)
        if self.tell() > _PACKED * self.fileobj.tell() + _SPARED_BYTES:  # type: ignore[union-attr]
            raise BadGzipFile(f"it unpacks to over {_PACKED} times its size")
        return content


def standard_input() -> BufferedReader:
    """Standard input's bytes; none where it is closed."""
    return BufferedReader(getattr(sys.stdin, "buffer", BytesIO()))


def unpack(file: BufferedReader) -> BufferedReader:
    """The file, or what it holds where it is gzip."""
    packed = file.peek(2)[:2] == b"\x1f\x8b"
    return BufferedReader(cast(RawIOBase, _Packed(fileobj=file))) if packed else file


def read_document(path: Path, most_bytes: int = DOCUMENT_BYTES, *, packed: bool = False) -> bytes:
    """Read a whole regular file; ``OSError`` where it is larger than ``most_bytes``, too.

    ``packed``: it may be gzip; then these bytes are what it holds.
    """
    with open_regular(path) as file:
        try:
            content = (unpack(file) if packed else file).read(most_bytes + 1)
        except (EOFError, BadGzipFile, zlib.error) as error:
            why = f"its gzip data is damaged: {error}"
            raise OSError(errno.EINVAL, why, str(path)) from None
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes / 2**20:g} MiB", str(path))
    return content


def hash_file(path: Path | str) -> str:
    """SHA-256 of a file's bytes; ``OSError``."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, most_bytes: int = DOCUMENT_BYTES) -> Any:
    """Read a JSON document; raises as ``read_document`` and ``parse_json``."""
    try:
        text = read_document(path, most_bytes).decode()
    except UnicodeDecodeError:
        raise Unparsable("not UTF-8, so not JSON") from None
    return parse_json(text)


def check_parts(text: str) -> None:
    """Raise ``Unparsable`` for JSON of millions of lists or values: up to 25 times its bytes."""
    if len(text) > _MOST_VALUES and text.count(",") > _MOST_VALUES:
        raise Unparsable(f"JSON of over {_MOST_VALUES:,} values")
    if len(text) <= _MOST_PARTS or text.count("[") + text.count("{") <= _MOST_PARTS:
        return
    parts = (found for found in _PART.finditer(text) if found[1])  # strings may have any
    if next(islice(parts, _MOST_PARTS, None), None):
        raise Unparsable(f"JSON of over {_MOST_PARTS:,} lists and objects")


def parse_json(text: str) -> Any:
    """Parse a JSON document; ``Unparsable`` also where it is nested too deeply."""
    check_parts(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise explain(error) from None


def explain(error: ValueError | RecursionError) -> Unparsable:
    """What ``json`` means, in words."""
    if isinstance(error, json.JSONDecodeError):
        return Unparsable(f"broken JSON ({error.msg} at column {error.colno})", error.lineno)
    return Unparsable("unreadable JSON (nested too deeply, or a number of thousands of digits)")


def check_yaml_size(root: yaml.Node) -> None:
    """Raise ``Unparsable`` where aliases make a text hold itself, or much more than it writes."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 0
            if isinstance(node, yaml.CollectionNode):
                pairs = (each if type(each) is tuple else (each,) for each in node.value)
                sizes[id(node)] = 1 + sum(size(part) for pair in pairs for part in pair)
            else:
                sizes[id(node)] = 1 + len(node.value) // _NODE_CHARACTERS
        if not 0 < sizes[id(node)] <= _MOST_NODES:
            raise Unparsable("YAML that holds itself, or many times the same")
        return sizes[id(node)]

    size(root)


class YamlLoader(yaml.SafeLoader):
    """Safe YAML of bounded numbers: a longer one is a ``ValueError``."""


def _construct_number(loader: YamlLoader, node: yaml.ScalarNode) -> Any:
    if node.tag.endswith(":int") and len(node.value) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of more than {_LONGEST_INTEGER} characters")
    try:
        return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)
    except OverflowError:  # a float of base 60
        raise ValueError("a number beyond all floats") from None


for _kind in ("int", "float"):
    YamlLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _construct_number)


def load_yaml(text: str, loader: type[YamlLoader] = YamlLoader) -> list[Any]:
    """The documents of a YAML text; ``Unparsable`` also where aliases make it much larger."""
    try:
        for node in yaml.compose_all(text, YamlLoader):
            check_yaml_size(node)
        return list(yaml.load_all(text, loader))
    except RecursionError:
        raise Unparsable("YAML that is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise Unparsable(f"no YAML ({' '.join(str(error).split())[:200]})") from None


def whole_text(text: str) -> str:
    """The text with ``?`` for halves of characters: JSON can name them, no file can hold them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it; raises ``OSError``."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except RecursionError:  # a thousand folders within each other
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder)) from None


def whole_json(document: Any) -> Any:
    """A JSON document whose texts are whole, as ``whole_text`` makes them, without secrets."""
    text = json.dumps(document, ensure_ascii=False)
    whole = mask_secrets(whole_text(text))
    return document if whole == text else json.loads(whole)


_PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    installed = _PACKAGE / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def shipped_names(kind: str) -> list[str]:
    """Names of the YAML files in a folder of ``configs/``, such as ``models``, sorted."""
    return sorted(path.stem for path in (shipped("configs") / kind).glob("*.yaml"))


def user_cache() -> Path | None:
    """The user's folder for what can be made again; None in a container's user without a home."""
    return _of_user(user_cache_path)


def user_calibrations() -> Path | None:
    """The user's folder of the clock's calibrations; None without a home."""
    folder = _of_user(user_data_path)
    return folder and folder / "calibrations"


def _of_user(find: Callable[..., Path]) -> Path | None:
    try:
        folder = find("dsv4kv", appauthor=False)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None  # older versions leave the "~" of no home
