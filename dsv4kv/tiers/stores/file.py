"""Objects in files: ``ROOT/MODEL_DIGEST/HH/NAME.kv``, sealed.

Objects that are put together share a *pack*, a file that has a name for each of them: to make a
file takes a disk longer than to write 40 KiB. A pack is written in a folder of its process's own
and gets its names when it is whole; it goes with the last of them. The process holds a lock on the
folder, and whoever opens the store removes folders that nobody holds.
"""

import ctypes
import errno
import fcntl
import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from dsv4kv.errors import StoreFull, StoreUnavailable
from dsv4kv.files import read_document, replacing
from dsv4kv.tiers.stores.contract import Bytes, Found
from dsv4kv.tiers.stores.lanes import ALIGNED, THREADS, Lanes, Read, open_object
from dsv4kv.tiers.stores.namespace import Namespace
from dsv4kv.tiers.stores.seals import MOST_OBJECTS, SEAL_BYTES, Seals, held

_PACK_BYTES = 4 << 20  # of objects: more in one file does not make a disk faster
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNFINISHED = ".unfinished-"
_MOST_FACTS = 1 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h


def open_file(place: str, namespace: Namespace) -> "FileStore":
    """A store below that folder."""
    return FileStore(Path(place), namespace)


class _Wanted(NamedTuple):
    """An object to be read: its number among those asked for."""

    number: int
    name: str
    into: Bytes


class _Placed(NamedTuple):
    """Where in a file it is."""

    at: int
    wanted: _Wanted


class FileStore:
    """Objects in files of one folder, which several processes may share.

    An object is safe from the end of its process; from a power failure only where the store was
    opened ``durable``. What is deleted gives its room back at once where the file system can make
    holes; what is replaced does with the last object of its pack.

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
        self._lanes, self._most = Lanes(threads), MOST_OBJECTS
        with self._translated():
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)  # what an older version has made, too: they are prompts
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
        packs = list(self._packs([len(each) for each in data]))
        with self._translated():
            self._lanes.each(lambda n: self._put(names[packs[n]], data[packs[n]]), len(packs))

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """As every store's."""
        found = np.zeros(len(names), np.bool_)
        with self._translated():
            files = [
                (size, [_Wanted(number, names[number], into[number]) for number in numbers])
                for size, numbers in self._files_of(names)
            ]
            self._lanes.each(lambda n: self._get(*files[n], found), len(files))
        return found

    def exists(self, names: Sequence[str]) -> Found:
        """As every store's: a damaged object is there until somebody gets it."""
        there = (os.path.isfile(self._path(name)) for name in names)  # noqa: PTH113 it is faster
        return np.fromiter(there, np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        """As every store's."""
        with self._translated():
            for size, numbers in self._files_of(names):
                self._remove([names[number] for number in numbers], size)

    def close(self) -> None:
        """As every store's."""
        self._lanes.close()
        shutil.rmtree(self._own, ignore_errors=True)
        os.close(self._held)

    def _path(self, name: str) -> str:
        fan = xxhash.xxh3_64_intdigest(name.encode()) & 0xFF
        return f"{self._base}/{fan:02x}/{name.replace('/', '~')}.kv"

    def _probe(self) -> None:
        """Write a file, to know whether the disk is one for ``O_DIRECT`` and for packs."""
        probe, name = self._unfinished(), self._unfinished()
        self._lanes.write(probe, [(np.zeros(1, np.uint8), b"")], durable=False)
        try:
            os.link(probe, name)
            Path(name).unlink()
        except OSError:
            self._most = 1
        Path(probe).unlink()

    def _unfinished(self) -> str:
        return f"{self._own}/{next(self._numbers)}"

    def _packs(self, sizes: Sequence[int]) -> Iterator[slice]:
        """Which objects share a file: neighbours, and so that all threads have some."""
        total, threads = sum(sizes), self._lanes.threads
        rounds = max(1, ceil(total / (threads * _PACK_BYTES)))
        share = max(1, total // (threads * rounds))
        packs = [start // share for start in accumulate(sizes, initial=0)]
        start = 0
        for end in range(1, len(sizes) + 1):
            whole = end == len(sizes) or packs[end] != packs[start]
            if whole or end - start == self._most:
                yield slice(start, end)
                start = end

    def _put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """Write a pack; one of a single object has no table."""
        unfinished = self._unfinished()
        try:
            pairs = zip(names, data, strict=True)
            parts = [(each, self._seals.seal(name, each)) for name, each in pairs]
            if len(names) > 1:
                parts.append(self._seals.table(names, [len(each) for each in data]))
            self._lanes.write(unfinished, parts, durable=self._durable)
            paths = [self._path(name) for name in names]
            for path in paths[:-1]:
                self._add_name(unfinished, path)
            self._name(os.replace, unfinished, paths[-1])
            if self._durable:
                for folder in {Path(path).parent for path in paths}:
                    _sync(folder)
        finally:
            Path(unfinished).unlink(missing_ok=True)

    def _add_name(self, pack: str, path: str) -> None:
        try:
            self._name(os.link, pack, path)
        except FileExistsError:
            another = self._unfinished()
            try:
                os.link(pack, another)
                Path(another).replace(path)
            finally:
                Path(another).unlink(missing_ok=True)

    def _name(self, give: Callable[[str, str], None], file: str, path: str) -> None:
        try:
            give(file, path)
        except FileNotFoundError:  # the first object of this folder
            Path(path).parent.mkdir(0o700, exist_ok=True)
            if self._durable:
                _sync(self.folder)
            give(file, path)

    def _files_of(self, names: Sequence[str]) -> list[tuple[int, list[int]]]:
        """Bytes of every file in which there are some of the objects, and numbers of these."""
        files: dict[int, tuple[int, list[int]]] = {}
        for number, name in enumerate(names):
            with suppress(FileNotFoundError):
                status = os.lstat(self._path(name))
                if stat.S_ISREG(status.st_mode):
                    files.setdefault(status.st_ino, (status.st_size, []))[1].append(number)
        return list(files.values())

    def _get(self, size: int, wanted: Sequence[_Wanted], found: Found) -> None:
        """Read objects of one file of that size."""

        def get(read: Read) -> None:
            for run in _runs(self._places(read, size, wanted)):
                for each in self._get_run(read, run):
                    found[each.number] = True

        with suppress(FileNotFoundError):
            self._lanes.reading(self._path(wanted[0].name), get)
        for each in wanted:
            if not found[each.number]:
                found[each.number] = self._judge(each)

    def _places(self, read: Read, size: int, wanted: Sequence[_Wanted]) -> list[_Placed]:
        """Those objects that are in a file with that length, by where they begin."""
        if len(wanted) == 1 and held(len(wanted[0].into)) == size:
            return [_Placed(0, wanted[0])]
        page = np.empty(ALIGNED, np.uint8)
        if size < ALIGNED or size % ALIGNED or read(size - ALIGNED, [(page, 0)])[0] is None:
            return []
        places = self._seals.places(page)
        placed = [(places.get(self._seals.hash_of(each.name)), each) for each in wanted]
        return sorted(
            _Placed(place[0], each)
            for place, each in placed
            if place and place[1] == len(each.into)
        )

    def _get_run(self, read: Read, run: Sequence[_Placed]) -> Iterator[_Wanted]:
        """Read neighbours at once; those that are whole."""
        try:
            stretches = [(w.into, held(len(w.into)) - len(w.into)) for _, w in run]
            for (_, wanted), after in zip(run, read(run[0].at, stretches), strict=True):
                seal = b"" if after is None else bytes(after[-SEAL_BYTES:])
                if seal == self._seals.seal(wanted.name, wanted.into):
                    yield wanted
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            for each in run if len(run) > 1 else ():  # the others may be whole
                yield from self._get_run(read, [each])

    def _judge(self, wanted: _Wanted) -> bool:
        """Read an object that a batch did not find whole again, from its file as it is now.

        It may have been stored anew, or have another length; if it is damaged, it is removed.
        """
        path, data = Path(self._path(wanted.name)), None
        with suppress(FileNotFoundError):
            data = self._content(wanted.name, path)
            if data is None:
                taken = path.replace(self._unfinished())
                data = self._content(wanted.name, taken)
                if data is None:
                    self._found_damaged.append(wanted.name)
                else:
                    with suppress(FileExistsError):
                        path.hardlink_to(taken)
                taken.unlink()
        if data is None or len(data) != len(wanted.into):
            return False
        wanted.into[:] = data
        return True

    def _content(self, name: str, path: Path) -> Bytes | None:
        """An object by its file; None if it is not whole."""
        try:
            with os.fdopen(open_object(str(path), os.O_RDONLY), "rb") as opened:
                file = np.fromfile(opened, np.uint8)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None
        place = self._seals.places(file[-ALIGNED:]).get(self._seals.hash_of(name))
        if place is not None:
            file = file[place[0] : place[0] + held(place[1])]
        return self._seals.content(name, file)

    def _remove(self, names: Sequence[str], size: int) -> None:
        """Delete objects of one file of that size, and make holes where others stay."""
        try:
            file = open_object(self._path(names[0]), os.O_RDWR)
        except FileNotFoundError:
            if names[1:]:
                self._remove(names[1:], size)
            return
        try:
            for name in names:
                Path(self._path(name)).unlink(missing_ok=True)
            if os.fstat(file).st_nlink and size >= ALIGNED:
                page = os.pread(file, ALIGNED, size - ALIGNED)
                places = self._seals.places(np.frombuffer(page, np.uint8))
                for place in filter(None, (places.get(self._seals.hash_of(n)) for n in names)):
                    _make_hole(file, place[0], held(place[1]))
        finally:
            os.close(file)

    def _check(self, namespace: Namespace) -> None:
        config = self.folder / "config.json"
        if not config.exists():
            with replacing(config, 0o600) as file:
                file.write(namespace.facts.encode())
        if read_document(config, _MOST_FACTS) != namespace.facts.encode():
            raise StoreUnavailable(
                f"{config}: these are not the objects of {namespace.model} at {namespace.revision}"
                f" with this layout (digest {namespace.digest}): name another folder, or remove "
                "this one."
            )

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


def _runs(placed: Sequence[_Placed]) -> Iterator[Sequence[_Placed]]:
    """Cut between objects that do not follow on each other."""
    starts = [
        number
        for number, (left, right) in enumerate(pairwise(placed), start=1)
        if left.at + held(len(left.wanted.into)) != right.at
    ]
    yield from (placed[a:b] for a, b in pairwise([0, *starts, len(placed)]) if a < b)


def _make_hole(file: int, at: int, size: int) -> None:
    """Give a part of a file back to the disk, where that can be done."""
    with suppress(AttributeError):  # Linux's
        place = ctypes.c_int64(at), ctypes.c_int64(size)
        ctypes.CDLL(None).fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, *place)


def _own_folder(folder: Path) -> tuple[str, int]:
    """A new folder that is known to be in use while its descriptor is open."""
    while True:
        own = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        own.mkdir(0o700)
        with suppress(FileNotFoundError):
            held = os.open(own, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_EX)
            if own.is_dir():  # nobody took it for a left-over before it was locked
                return str(own), held
            os.close(held)


def _remove_unfinished(folder: Path) -> None:
    """Remove what processes that are gone have left."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        with suppress(FileNotFoundError, NotADirectoryError):
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
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
