"""Objects in files: ``ROOT/MODEL_DIGEST/HH/NAME.kv``, one for each, sealed.

A file has no name before it is whole: a process that is killed leaves nothing.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash

from dsv4kv.bench.tiers.store import Bytes, Found, Namespace, Seals
from dsv4kv.errors import StoreFull, StoreUnavailable
from dsv4kv.files import read_document, replacing

THREADS = 8
ResultT = TypeVar("ResultT")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST_FACTS = 1 << 20
_MOST_BYTES = 1 << 30  # of an object: what is larger is not read to be judged


class FileStore:
    """Objects in files of one folder, which several processes may share.

    Attributes:
        folder: Of this namespace.
        cold: How files come from the disk, not from the page cache.
    """

    cold = "posix_fadvise(DONTNEED)" if hasattr(os, "posix_fadvise") else ""

    def __init__(self, root: str | Path, namespace: Namespace, *, threads: int = THREADS) -> None:
        """Open the namespace's folder below ``root``, or make it; ``threads`` move files.

        Raises:
            StoreUnavailable: It cannot be made or written, or is another namespace's.
        """
        self.folder, self._seals = Path(root) / namespace.folder, Seals(namespace)
        self._lost: list[str] = []
        self._pool = ThreadPoolExecutor(threads, "file-store")
        with self._translated():
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # what an older version has made, too: they are prompts
            config = self.folder / "config.json"
            if not config.exists():
                with replacing(config, 0o600) as file:
                    file.write(namespace.facts.encode())
            if read_document(config, _MOST_FACTS) != namespace.facts.encode():
                raise StoreUnavailable(
                    f"{config}: these are not the objects of {namespace.model} at "
                    f"{namespace.revision} with this layout (digest {namespace.digest}): name "
                    "another folder, or remove this one."
                )

    @property
    def damaged(self) -> int:
        return len(self._lost)

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        self._each(self._put, names, data)

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        return np.array(self._each(self._get, names, into), np.bool_)

    def exists(self, names: Sequence[str]) -> Found:
        there = (os.path.isfile(self._path(name)) for name in names)  # noqa: PTH113 it is faster
        return np.fromiter(there, np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        with self._translated():
            for name in names:
                path = Path(self._path(name))
                if not path.is_dir():
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        self._pool.shutdown()

    def _each(
        self, move: Callable[[str, Bytes], ResultT], names: Sequence[str], data: Sequence[Bytes]
    ) -> list[ResultT]:
        """Move objects with all threads; every thread is done when this returns or raises."""
        pairs = zip(names, data, strict=True)
        moved = [self._pool.submit(move, name, each) for name, each in pairs]
        wait(moved)
        with self._translated():
            return [each.result() for each in moved]

    def _path(self, name: str) -> str:
        fan = xxhash.xxh3_64_intdigest(name.encode()) & 0xFF
        return f"{self.folder}/{fan:02x}/{name.replace('/', '~')}.kv"

    def _put(self, name: str, data: Bytes) -> None:
        path = Path(self._path(name))
        path.parent.mkdir(0o700, exist_ok=True)
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise OSError(errno.EEXIST, "there is something that is no object", str(path))
        with replacing(path, 0o600) as file:
            file.write(data.data)
            file.write(self._seals.seal(name, data))
            file.flush()
            os.fdatasync(file.fileno())  # so that reading it back does not wait for writing

    def _get(self, name: str, into: Bytes) -> bool:
        path = Path(self._path(name))
        try:
            file = _open_plain(path)
        except FileNotFoundError:
            return False
        size = into.nbytes + Seals.BYTES
        try:
            status = os.fstat(file)
            if status.st_size == size:
                seal = bytearray(Seals.BYTES)
                read = os.preadv(file, [into.data, seal], 0)
                if read == size and seal == self._seals.seal(name, into):
                    return True
            elif status.st_size <= _MOST_BYTES:
                other = np.frombuffer(os.pread(file, status.st_size, 0), np.uint8)
                if self._seals.content(name, other) is not None:
                    return False  # of another length
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        finally:
            os.close(file)
        self._lost.append(name)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == status.st_ino:  # not replaced since
                path.unlink()
        return False

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in _FULL:
                raise StoreFull(
                    f"{self.folder}: no room for another object ({reason}): delete some, or name "
                    "a folder on a larger disk."
                ) from None
            raise StoreUnavailable(
                f"{self.folder}: it cannot be used as a store ({reason}): name a folder that can "
                "be written."
            ) from None


def _open_plain(path: Path) -> int:
    """A descriptor of a plain file whose bytes are not in the page cache.

    A pipe or device is never waited for. Raises ``FileNotFoundError``.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a circle of links, a socket
            raise
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(errno.ENOENT, "no plain file", str(path))
    with suppress(OSError, AttributeError):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return file
