"""What every store can do: objects of bytes by name, many at a time; in memory, and in files.

A store knows nothing of caches. Names are made of letters, digits and ``.-_/``; an object is there
whole or not at all, under its final name, whatever is killed in between.
"""

import errno
import json
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from dsv4kv.choices import STORES, choose
from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from dsv4kv.files import read_document, replacing
from dsv4kv.units import format_bytes, parse_bytes

Bytes = NDArray[np.uint8]
"""uint8[n], contiguous: a view of the caller's memory, never kept."""

Found = NDArray[np.bool_]
"""bool[n], one for every name that was given."""


class Store(Protocol):
    """Objects by name.

    Every call may be made from several threads. A store that cannot answer at all (a server that
    is gone, a folder that cannot be written) raises ``StoreUnavailable``; nothing hangs for longer
    than its timeout, and the next call tries anew.
    """

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """Keep copies under names, in place of what was there; whole when this returns.

        Raises ``StoreUnavailable`` or its subclass ``StoreFull``: stored objects are whole.
        """

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """Fill ``into`` with objects; which were there, whole and of that length.

        What ``into`` holds for the others is not defined: absent, of another length, or damaged,
        in which case the object is deleted and counted in ``damaged``.
        """

    def exists(self, names: Sequence[str]) -> Found:
        """Which objects are there; a damaged one counts until it is read."""

    def delete(self, names: Sequence[str]) -> None:
        """Forget objects; those that are not there are passed over."""

    @property
    def damaged(self) -> int:
        """Objects found damaged so far, by this process."""

    def close(self) -> None:
        """Let go of files, threads and connections; what is kept stays."""


@dataclass(frozen=True)
class Namespace:
    """Caches whose bytes mean the same: objects of another model have equal sizes."""

    model: str  # the model's name
    revision: str  # of its weights: other weights fill the same layout with other numbers
    layout: Mapping[str, object]  # formats and geometry, as JSON has it

    @property
    def facts(self) -> str:
        """Everything that distinguishes these caches from others, as JSON."""
        return json.dumps(vars(self), sort_keys=True, indent=1)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that stand for it."""
        return sha256(self.facts.encode()).hexdigest()[:32]

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{re.sub('[^A-Za-z0-9.-]', '_', self.model)}_{self.digest[:12]}"


class Seals:
    """What follows an object's bytes where others can reach them: they are its own, and whole.

    A seal is ``dsv4kv01``, the length in bytes as u64 and 128 bits of XXH3, little-endian, seeded
    by namespace and name. It finds accidents, not forgeries.
    """

    BYTES = 32
    _FORMAT, _MAGIC = struct.Struct("<8sQ16s"), b"dsv4kv01"

    def __init__(self, namespace: Namespace) -> None:
        self._seed = int(namespace.digest[:16], 16)

    def seal(self, name: str, data: Bytes) -> bytes:
        """The seal of an object."""
        seed = xxhash.xxh3_64_intdigest(name.encode(), self._seed)
        digest = xxhash.xxh3_128_digest(data.data, seed)
        return self._FORMAT.pack(self._MAGIC, data.nbytes, digest)

    def content(self, name: str, sealed: Bytes) -> Bytes | None:
        """What is before a seal; None if that is not its seal."""
        data = sealed[: max(0, sealed.nbytes - self.BYTES)]
        return data if sealed[data.nbytes :].tobytes() == self.seal(name, data) else None


class MemoryStore:
    """Objects in this process's memory, up to ``capacity_bytes``; they are not sealed."""

    damaged = 0

    def __init__(self, capacity_bytes: int, *, pinned: bool = False) -> None:
        """``pinned``: GPUs copy from it without the driver's help."""
        self.capacity_bytes, self.pinned, self.used_bytes = capacity_bytes, pinned, 0
        self._objects: dict[str, Bytes] = {}
        self._lock = Lock()

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        for name, each in zip(names, data, strict=True):
            copy = self._room(len(each))
            np.copyto(copy, each)
            with self._lock:
                used = self.used_bytes + len(each) - len(self._objects.get(name, ()))
                if used > self.capacity_bytes:
                    raise StoreFull(
                        f"host memory: {name} of {format_bytes(len(each))} does not fit: "
                        f"{format_bytes(self.used_bytes)} of {format_bytes(self.capacity_bytes)} "
                        "are in use. Delete objects, or give the store more."
                    )
                self._objects[name], self.used_bytes = copy, used

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        found = np.zeros(len(names), np.bool_)
        for place, (name, room) in enumerate(zip(names, into, strict=True)):
            kept = self._objects.get(name)
            if kept is not None and len(kept) == len(room):
                np.copyto(room, kept)
                found[place] = True
        return found

    def exists(self, names: Sequence[str]) -> Found:
        return np.fromiter((name in self._objects for name in names), np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self.used_bytes -= len(self._objects.pop(name, ()))

    def close(self) -> None:
        """Nothing to do."""

    def _room(self, size: int) -> Bytes:
        if not self.pinned:
            return np.empty(size, np.uint8)
        import torch

        try:
            room: Bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        except RuntimeError as error:
            raise StoreUnavailable(
                f"host memory cannot be pinned here ({str(error).splitlines()[0]}): leave it "
                "unpinned, or run where there is a GPU."
            ) from None
        return room


def open_memory(place: str, namespace: Namespace) -> MemoryStore:
    """A store of that capacity, ``64GiB`` or ``pinned:64GiB``; it is this process's alone."""
    pinned, _, size = place.rpartition(":")
    return MemoryStore(parse_bytes(size), pinned=pinned == "pinned")


def open_store(place: str, namespace: Namespace) -> Store:
    """Open the store of a place, ``memory:64GiB`` or ``file:/mnt/kv``, for one namespace.

    Raises ``ConfigError`` for an unknown kind of store or place, ``StoreUnavailable`` where it
    cannot be reached or written.
    """
    kind, _, rest = place.partition(":")
    row = choose(STORES, kind, "a kind of store")
    if not rest:
        raise ConfigError(f"{place!r} does not say where: {kind} is {row.explains}.")
    store: Store = row.load()(rest, namespace)
    return store


def cut(sizes: Sequence[int], most_bytes: int, most: int = 1000) -> Iterator[range]:
    """Cut neighbouring objects into batches of limited bytes and count."""
    start, weight = 0, 0
    for end, size in enumerate(sizes):
        if end > start and (weight + size > most_bytes or end - start == most):
            yield range(start, end)
            start, weight = end, 0
        weight += size
    if sizes:
        yield range(start, len(sizes))


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
