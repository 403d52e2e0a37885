"""What every store can do: objects of bytes by name, many at a time; in memory, and in files.

A store knows nothing of caches, and checks no content: a library has every object's digest. Names
are made of letters, digits and ``.-_/``; an object is there whole or not at all, under its final
name, whatever is killed in between.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from dsv4kv.errors import StoreFull, StoreUnavailable
from dsv4kv.files import make_folder, replacing

Bytes = NDArray[np.uint8]  # uint8[n], contiguous: a view of the caller's memory, never kept

Found = NDArray[np.bool_]  # bool[n], one for every name that was given


class Store(Protocol):
    """Objects by name; every call may be made from several threads.

    A store that cannot answer raises ``StoreUnavailable``, and the next call tries anew.
    """

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """Keep copies under names, in place of what was there; whole when this returns.

        Raises ``StoreUnavailable`` or its subclass ``StoreFull``: stored objects are whole.
        """

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """Fill ``into`` with objects; which were there and of that length.

        What ``into`` holds for the others is not defined.
        """

    def exists(self, names: Sequence[str]) -> Found:
        """Which objects are there, of whatever length."""

    def delete(self, names: Sequence[str]) -> None:
        """Forget objects; those that are not there are passed over."""

    def close(self) -> None:
        """Let go of files and threads; what is kept stays."""


class MemoryStore:
    """Objects in this process's memory."""

    def __init__(self) -> None:
        self.objects: dict[str, Bytes] = {}

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        self.objects.update(zip(names, [each.copy() for each in data], strict=True))

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        found = np.zeros(len(names), np.bool_)
        for place, (name, room) in enumerate(zip(names, into, strict=True)):
            kept = self.objects.get(name)
            if kept is not None and len(kept) == len(room):
                np.copyto(room, kept)
                found[place] = True
        return found

    def exists(self, names: Sequence[str]) -> Found:
        return np.fromiter((name in self.objects for name in names), np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    def close(self) -> None:
        """Nothing to do."""


_ResultT = TypeVar("_ResultT")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileStore:
    """Objects in files of one folder, read from the disk and not from the page cache."""

    def __init__(self, folder: Path, *, threads: int = 8) -> None:
        """Open the folder, or make it; ``threads`` move files.

        Raises ``StoreUnavailable`` where it cannot be made or written.
        """
        self.folder, self._pool = folder, ThreadPoolExecutor(threads, "file-store")
        with self._translated():
            make_folder(folder, 0o700)

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
                Path(self._path(name)).unlink(missing_ok=True)

    def close(self) -> None:
        self._pool.shutdown()

    def _each(
        self, move: Callable[[Path, Bytes], _ResultT], names: Sequence[str], data: Sequence[Bytes]
    ) -> list[_ResultT]:
        """Move objects with all threads; every thread is done when this returns or raises."""
        pairs = zip(names, data, strict=True)
        moved = [self._pool.submit(move, Path(self._path(name)), each) for name, each in pairs]
        wait(moved)
        with self._translated():
            return [each.result() for each in moved]

    def _path(self, name: str) -> str:
        fan = xxhash.xxh3_64_intdigest(name.encode()) & 0xFF
        return f"{self.folder}/{fan:02x}/{name.replace('/', '~')}.kv"

    def _put(self, path: Path, data: Bytes) -> None:
        path.parent.mkdir(0o700, exist_ok=True)
        with replacing(path, 0o600) as file:
            file.write(data.data)
            file.flush()
            os.fdatasync(file.fileno())  # so that reading it back does not wait for writing

    def _get(self, path: Path, into: Bytes) -> bool:
        if not path.is_file() or path.stat().st_size != into.nbytes:
            return False
        with path.open("rb", buffering=0) as file:
            with suppress(OSError, AttributeError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return file.readinto(into.data) == into.nbytes

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
