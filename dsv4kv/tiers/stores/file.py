"""Objects in files, one each: ``ROOT/MODEL_DIGEST/HH/NAME.kv``, sealed.

A file appears under its name by a rename, whole. Until then it is in a folder of its process's
own, which the process holds a lock on; whoever opens the store removes folders that nobody holds.
"""

import errno
import fcntl
import itertools
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import xxhash

from dsv4kv.errors import StoreFull, StoreUnavailable
from dsv4kv.files import replacing
from dsv4kv.tiers.stores.contract import Bytes, Found
from dsv4kv.tiers.stores.lanes import ALIGNED, THREADS, Lanes, round_up
from dsv4kv.tiers.stores.namespace import Namespace
from dsv4kv.tiers.stores.seals import SEAL_BYTES, Seals

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNFINISHED = ".unfinished-"


def open_file(place: str, namespace: Namespace) -> "FileStore":
    """A store below that folder."""
    return FileStore(Path(place), namespace)


class FileStore:
    """Objects in files of one folder, which several processes may share.

    A file is the object, zeros and its seal, a multiple of 4,096 bytes. An object is safe from
    the end of its process; from a power failure only where the store was opened ``durable``.

    Attributes:
        folder: Of this namespace.
    """

    def __init__(
        self, root: Path, namespace: Namespace, *, threads: int = THREADS, durable: bool = False
    ) -> None:
        """Open the namespace's folder below ``root``, or make it.

        Args:
            root: Where folders of namespaces are.
            namespace: Whose bytes these are.
            threads: Files that are read and written at once.
            durable: Wait for the disk to have every object, and its name.

        Raises:
            StoreUnavailable: It cannot be made or written, or says that it is another's.
        """
        self.folder = root / namespace.folder
        self._durable, self._seals = durable, Seals(namespace)
        self._base, self._numbers = str(self.folder), itertools.count()
        self._found_damaged: list[str] = []
        self._lanes = Lanes(threads)
        with self._told():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._check(namespace)
            _remove_unfinished(self.folder)
            self._own, self._held = _own_folder(self.folder)
            try:
                self._probe()
            except BaseException:
                self.close()
                raise

    @property
    def damaged(self) -> int:
        """As every store's, found by this process."""
        return len(self._found_damaged)

    @property
    def cold(self) -> str:
        """How files come from the disk, not from the page cache."""
        return "O_DIRECT" if self._lanes.direct else "posix_fadvise(DONTNEED)"

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """As every store's."""
        with self._told():
            self._lanes.each(lambda n: self._put(names[n], data[n]), len(names))

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """As every store's."""
        found = np.zeros(len(names), np.bool_)

        def get(number: int) -> None:
            found[number] = self._get(names[number], into[number])

        with self._told():
            self._lanes.each(get, len(names))
        return found

    def exists(self, names: Sequence[str]) -> Found:
        """As every store's: a damaged object is there until somebody gets it."""
        there = (os.access(self._path(name), os.F_OK) for name in names)
        return np.fromiter(there, np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        """As every store's."""
        with self._told():
            for name in names:
                Path(self._path(name)).unlink(missing_ok=True)

    def close(self) -> None:
        """As every store's."""
        self._lanes.close()
        shutil.rmtree(self._own, ignore_errors=True)
        os.close(self._held)

    def _path(self, name: str) -> str:
        fan = xxhash.xxh3_64_intdigest(name.encode()) & 0xFF
        return f"{self._base}/{fan:02x}/{name.replace('/', '~')}.kv"

    def _probe(self) -> None:
        """Write a file, to know whether the disk is one for ``O_DIRECT``."""
        probe = self._unfinished()
        self._lanes.write(probe, np.zeros(0, np.uint8), bytes(ALIGNED), durable=False)
        Path(probe).unlink()

    def _unfinished(self) -> str:
        return f"{self._own}/{next(self._numbers)}"

    def _put(self, name: str, data: Bytes) -> None:
        unfinished = self._unfinished()
        zeros = bytes(round_up(len(data) + SEAL_BYTES) - len(data) - SEAL_BYTES)
        try:
            seal = self._seals.seal(name, data)
            self._lanes.write(unfinished, data, zeros + seal, durable=self._durable)
            self._publish(unfinished, self._path(name))
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise

    def _publish(self, unfinished: str, path: str) -> None:
        try:
            os.replace(unfinished, path)  # noqa: PTH105 a path object takes longer than all else
        except FileNotFoundError:  # the first object of this folder
            Path(path).parent.mkdir(exist_ok=True)
            if self._durable:
                _sync(self.folder)
            Path(unfinished).replace(path)
        if self._durable:
            _sync(Path(path).parent)

    def _get(self, name: str, into: Bytes) -> bool:
        path, rest = self._path(name), round_up(len(into) + SEAL_BYTES) - len(into)
        try:
            after = self._lanes.read(path, into, rest)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            after = None
        whole = after is not None and len(after) == rest
        if after is not None and whole:
            whole = after[-SEAL_BYTES:] == self._seals.seal(name, into)
        if not whole:
            self._judge(name, Path(path))
        return whole

    def _judge(self, name: str, path: Path) -> None:
        """Remove a file unless it is a whole object, of another length than was wanted."""
        with suppress(FileNotFoundError):
            if self._is_whole(name, path):
                return
            taken = path.replace(self._unfinished())
            if self._is_whole(name, taken):  # put anew since it was looked at
                with suppress(FileExistsError):
                    path.hardlink_to(taken)
            else:
                self._found_damaged.append(name)
            taken.unlink()

    def _is_whole(self, name: str, path: Path) -> bool:
        try:
            return self._seals.holds(name, np.fromfile(path, np.uint8))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False

    def _check(self, namespace: Namespace) -> None:
        config = self.folder / "config.json"
        if not config.exists():
            with replacing(config) as file:
                file.write(namespace.facts.encode())
        if config.read_text(errors="replace") != namespace.facts:
            raise StoreUnavailable(
                f"{config}: these are not the objects of {namespace.model} at {namespace.revision}"
                f" with this layout (digest {namespace.digest}): name another folder, or remove "
                "this one."
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
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


def _own_folder(folder: Path) -> tuple[str, int]:
    """A new folder that is known to be in use while its descriptor is open."""
    while True:
        own = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        own.mkdir()
        with suppress(FileNotFoundError):
            held = os.open(own, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_EX)
            if own.is_dir():  # nobody took it for a left-over before it was locked
                return str(own), held
            os.close(held)


def _remove_unfinished(folder: Path) -> None:
    """Remove what processes that are gone have left."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        with suppress(FileNotFoundError):
            held = os.open(left, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            except BlockingIOError:
                continue  # its process is at work
            finally:
                os.close(held)


def _sync(folder: Path) -> None:
    """Let the disk have a folder's names."""
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)
