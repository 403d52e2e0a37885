"""Files and folders that appear whole or not at all."""

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

from dsv4kv.errors import ConfigError


class NotPrivate(PermissionError):
    """Others may have put there what is there: ``filename`` says where, ``strerror`` how."""


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BufferedWriter]:
    """Open a file that takes the place of ``path`` if the block succeeds.

    It has no name before that where the system can do so (Linux, most file systems): a process
    that is killed leaves nothing. Elsewhere it is a neighbour of ``path``. A device or a pipe
    stays what it is and is written to, as /dev/null.
    ``mode``: permissions, from which the umask takes away.

    Raises:
        OSError: The folder cannot be written, or ``path`` is one.
    """
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


def read_private(path: Path) -> bytes:
    """Content of a file that nobody but this user can have written or put there.

    Raises:
        NotPrivate: The file or its folder belongs to somebody else, can be written by others, or
            is a link.
        OSError: There is none, or it cannot be read.
    """
    folder = _open_private(path.parent, os.O_DIRECTORY)
    try:
        with os.fdopen(_open_private(path, 0, within=folder), "rb") as file:
            return file.read()
    finally:
        os.close(folder)


def check_private(folder: Path) -> None:
    """Raise ``NotPrivate`` where ``read_private`` would for any file of this folder."""
    os.close(_open_private(folder, os.O_DIRECTORY))


def _open_private(path: Path, flags: int, within: int | None = None) -> int:
    """A descriptor of what is there, which is looked at once it is open: no one can swap it."""
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        found = os.open(path if within is None else path.name, flags, dir_fd=within)
    except OSError as error:
        if path.is_symlink():
            raise NotPrivate(errno.EACCES, "it is a link", str(path)) from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    facts = os.fstat(found)
    kind = stat.S_ISDIR if flags & os.O_DIRECTORY else stat.S_ISREG
    reasons = {
        "it is no plain file": not kind(facts.st_mode),
        "it belongs to another user": facts.st_uid != os.geteuid(),
        "others can write to it": bool(facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)),
    }
    for reason, holds in reasons.items():
        if holds:
            os.close(found)
            raise NotPrivate(errno.EACCES, reason, str(path))
    return found


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Make a folder next to ``path`` that takes its place if the block succeeds.

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


def check_file(path: Path) -> None:
    """Raise the ``OSError`` that ``replacing`` would, as far as is known; writes nothing."""
    if _is_special(path):
        _check_access(path, os.W_OK)
    elif path.is_dir() or not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    else:
        _check_place(path.parent)


def check_folder(path: Path) -> None:
    """Raise the ``OSError`` of files in a folder that may have to be made; writes nothing."""
    while not os.path.lexists(path) and path.name:
        path = path.parent
    _check_place(path)


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
    """Whether there is something that is neither a file nor a folder: a device, a pipe."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextmanager
def refused_by(
    option: str, path: Path, instead: str = "name a file in a folder that exists"
) -> Iterator[None]:
    """Say that what an option named cannot be written, and what to do ``instead``.

    Raises:
        ConfigError: In place of an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: cannot be written ({error.strerror or error}): {instead}."
        ) from None


def write_named(path: Path, text: str, option: str) -> None:
    """Write a file that an option named.

    Raises:
        ConfigError: It cannot be written.
    """
    with refused_by(option, path), replacing(path) as file:
        file.write(text.encode())


def temporary_place() -> Path:
    """The system's folder for temporary files, found without writing one into it.

    Python's own search writes and removes a file, which a process that is killed leaves behind.
    """
    if tempfile.tempdir is None:
        named = [os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]
        usual = (place for place in (*named, "/tmp", "/var/tmp") if os.access(place, os.W_OK))
        tempfile.tempdir = next(usual, None)
    return Path(tempfile.gettempdir())


def _open_unnamed(folder: Path, mode: int) -> int | None:
    """A file of a folder that has no name yet; None where there can be none."""
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
