"""Prefixes beyond the GPU's memory: stored from a live cache, looked up, restored into one.

A prefix is whole blocks: a page of every family for each, and the windows and states of its end.
A manifest, written last, makes it a resume point: what has none is not found. It has the digest of
every object, and what is read must have that digest before a request may use it.

A name is ``<key>.<family>``: a store is of one model with its weights, formats and layout. The key
is SGLang 0.5.23's page hash: SHA-256 over the key before, nothing for the first, and the page's
tokens as little-endian 32-bit numbers.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from dsv4kv.bench.objects import CacheBytes, Objects
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.errors import CacheError, StoreFull, StoreUnavailable
from dsv4kv.files import make_folder, replacing
from dsv4kv.model.plan import Family, Kept

Bytes = NDArray[np.uint8]  # uint8[n], contiguous: a view of the caller's memory, never kept

Found = NDArray[np.bool_]  # bool[n], one for every name that was given


class MemoryStore:
    """Objects by name, in this process's memory; every call may be made from several threads.

    A store that cannot answer raises ``StoreUnavailable``, and the next call tries anew.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Bytes] = {}

    def put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        """Keep copies under names and replace older ones; whole when this returns.

        Raises ``StoreUnavailable`` or its subclass ``StoreFull``: stored objects are whole.
        """
        self.objects.update(zip(names, [each.copy() for each in data], strict=True))

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """Fill ``into`` with objects; which were there and of that length.

        What ``into`` holds for the others is not defined.
        """
        found = np.zeros(len(names), np.bool_)
        for place, (name, room) in enumerate(zip(names, into, strict=True)):
            kept = self.objects.get(name)
            if kept is not None and len(kept) == len(room):
                np.copyto(room, kept)
                found[place] = True
        return found

    def exists(self, names: Sequence[str]) -> Found:
        """Which objects are there, of whatever length."""
        return np.fromiter((name in self.objects for name in names), np.bool_, len(names))

    def delete(self, names: Sequence[str]) -> None:
        """Forget objects; those that are not there are passed over."""
        for name in names:
            self.objects.pop(name, None)

    def close(self) -> None:
        """Let go of files and threads; what is kept stays."""


_ResultT = TypeVar("_ResultT")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileStore:
    """``MemoryStore`` in files of a folder, read from the disk and not from the page cache."""

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
        return f"{self.folder}/{fan:02x}/{name}.kv"

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


Store = MemoryStore | FileStore

_DIGEST_BYTES = 16
_CHUNK_BYTES = 32 << 20  # moved at a time: enough for many threads of a store, little of memory
_MANIFEST = "manifest"


def page_digests(tokens: ArrayLike, page_tokens: int) -> list[bytes]:
    """A digest for every whole page of a prompt, int[n], each over the one before and its tokens.

    As SGLang 0.5.23 has it, ``mem_cache/cpp_utils/hash_binding.cpp``.
    """
    ids = np.ascontiguousarray(tokens, dtype="<u4")
    before, digests = b"", []
    for page in ids[: len(ids) // page_tokens * page_tokens].reshape(-1, page_tokens):
        before = sha256(before + page.tobytes()).digest()
        digests.append(before)
    return digests


class Prefix:
    """The whole blocks of a prompt, as stores know them by their keys."""

    def __init__(self, tokens: ArrayLike, block_tokens: int) -> None:
        self.keys = [digest.hex() for digest in page_digests(tokens, block_tokens)]

    def __len__(self) -> int:
        return len(self.keys)

    def name(self, what: str, blocks: int) -> str:
        """The name of what belongs to the end of its first blocks: of a family, or a manifest."""
        return f"{self.keys[blocks - 1]}.{what}"

    def names(self, what: str, blocks: int) -> list[str]:
        """Names of what belongs to the ends of its first blocks, each."""
        return [f"{key}.{what}" for key in self.keys[:blocks]]


def digest(data: Bytes) -> bytes:
    """16 bytes that stand for an object's: made for accidents, at memory speed."""
    return xxhash.xxh3_128_digest(data.data)


@dataclass(frozen=True)
class Restored:
    """What a request has got back."""

    tokens: int = 0  # restored: computing continues after them
    read_bytes: int = 0
    damaged: str = ""  # the first object that was not there as it was stored


@dataclass(frozen=True)
class _Piece:
    """Objects of a family that move together: their names, places in the cache, and copies."""

    family: Family
    names: list[str]
    units: Ids
    copies: Objects

    @property
    def rows(self) -> list[Bytes]:
        return list(self.copies.reshape(len(self.copies), -1))


class Library:
    """Prefixes of one cache in a store; raises ``StoreUnavailable`` as the store does."""

    def __init__(self, cache: CacheBytes, store: Store) -> None:
        self.cache, self.store = cache, store
        self.block_tokens = cache.manager.plan.schemas[0].block_tokens
        needed = [each for each in cache.families.values() if each.objects(self.block_tokens)]
        self._pages = [family for family in needed if family.kept is Kept.PAGES]
        self._tails = [family for family in needed if family.kept is not Kept.PAGES]
        block_bytes = sum(family.object_bytes for family in self._pages)
        self._chunk = max(1, _CHUNK_BYTES // max(1, block_bytes))
        self._rooms: dict[str, Objects] = {}
        self._written: list[str] = []

    def prefix(self, tokens: ArrayLike) -> Prefix:
        """A prompt's token ids as stores know them."""
        return Prefix(tokens, self.block_tokens)

    def clear(self) -> None:
        self.store.delete(self._written)
        self._written = []

    def lookup(self, prefix: Prefix) -> list[int]:
        """After how many of a prompt's blocks a request can resume, rising.

        SGLang's ``batch_exists_v2``: a family that every page needs allows 1 … first missing; what
        is needed at the end alone allows wherever it is; what all allow is the answer.
        """
        allowed = self.store.exists(prefix.names(_MANIFEST, len(prefix)))
        for family in self._pages:
            found = self.store.exists(prefix.names(family.name, len(prefix)))
            allowed &= np.logical_and.accumulate(found)
        ends: list[int] = (np.flatnonzero(allowed) + 1).tolist()
        for family in self._tails:
            found = self.store.exists([prefix.name(family.name, end) for end in ends])
            ends = [end for end, there in zip(ends, found.tolist(), strict=True) if there]
        return ends

    def store_prefix(self, prefix: Prefix, slot: int) -> None:
        """Store the cache of a request that has exactly the prefix's tokens."""
        end = len(prefix)
        digests = dict[str, bytes]()
        for pieces in self._pieces(prefix, slot, end):
            for each in pieces:
                self.cache.take(each.family, each.units, each.copies)
                digests |= dict(zip(each.names, map(digest, each.rows), strict=True))
            names = [name for each in pieces for name in each.names]
            self._put(names, [row for each in pieces for row in each.rows])
        data = b"".join(digests[name] for name in self._names(prefix, end))
        manifest = np.frombuffer(data + xxhash.xxh3_128_digest(data), dtype=np.uint8)
        self._put([prefix.name(_MANIFEST, end)], [manifest])

    def restore(self, prefix: Prefix, slot: int) -> Restored:
        """Give a request that was just admitted as much of its prompt as can be.

        A request whose objects are not there as they were stored gets nothing. Raises
        ``OutOfBlocks`` where the prefix does not fit and ``CacheError`` where the slot holds
        something already; in all cases it holds nothing more than before.
        """
        manager = self.cache.manager
        if manager.tokens[slot]:
            raise CacheError(f"slot {slot} has tokens already: restore before its first step.")
        if not (ends := self.lookup(prefix)):
            return Restored()
        end = ends[-1]
        digests = self._read_manifest(prefix, end)
        if digests is None:
            return Restored(damaged=prefix.name(_MANIFEST, end))
        tokens, restored = end * self.block_tokens, Restored()
        prepare_forward(manager, [slot], [0], [tokens])
        try:
            restored = self._load(prefix, slot, end, digests)
        finally:
            if not restored.tokens:  # let the slot be as if it had just been admitted
                prepare_forward(manager, [slot], [tokens], [0])
                for states in manager.states.values():
                    states.reset_slot(slot)
        return restored

    def _load(self, prefix: Prefix, slot: int, end: int, digests: dict[str, bytes]) -> Restored:
        """Put objects into the cache, up to the first that is not there as it was stored."""
        read_bytes = 0
        for pieces in self._pieces(prefix, slot, end):
            names = [name for each in pieces for name in each.names]
            rows = [row for each in pieces for row in each.rows]
            found = self.store.get(names, rows).tolist()
            for name, row, there in zip(names, rows, found, strict=True):
                if not there or digest(row) != digests[name]:
                    return Restored(damaged=name)
            for each in pieces:
                self.cache.put(each.family, each.units, each.copies)
                read_bytes += each.copies.nbytes
        return Restored(end * self.block_tokens, read_bytes)

    def _names(self, prefix: Prefix, end: int) -> list[str]:
        """Names of all objects of a resume point, in the order of its manifest."""
        pages = [name for family in self._pages for name in prefix.names(family.name, end)]
        return pages + [prefix.name(family.name, end) for family in self._tails]

    def _pieces(self, prefix: Prefix, slot: int, end: int) -> Iterator[list[_Piece]]:
        """What moves at a time, in memory that the next ones are in: some pages, and the end."""
        tokens = end * self.block_tokens
        units = {f.name: self.cache.units(f, slot, tokens) for f in (*self._pages, *self._tails)}
        for start in range(0, end, self._chunk):
            some = slice(start, min(start + self._chunk, end))
            yield [
                _Piece(
                    family,
                    prefix.names(family.name, some.stop)[start:],
                    units[family.name][:, some],
                    self._room(family, some.stop - start),
                )
                for family in self._pages
            ]
        yield [
            _Piece(f, [prefix.name(f.name, end)], units[f.name], self._room(f, 1))
            for f in self._tails
        ]

    def _room(self, family: Family, count: int) -> Objects:
        """Memory for objects, used again and again: new pages take longer than what is copied."""
        room = self._rooms.get(family.name)
        if room is None or len(room) < count:
            room = self._rooms[family.name] = self.cache.new_objects(family, count)
        return room[:count]

    def _put(self, names: Sequence[str], data: Sequence[Bytes]) -> None:
        self._written += names
        self.store.put(names, data)

    def _read_manifest(self, prefix: Prefix, end: int) -> dict[str, bytes] | None:
        """Digests of a resume point's objects by name; None if the manifest is gone or damaged."""
        names = self._names(prefix, end)
        data = np.empty(_DIGEST_BYTES * (len(names) + 1), dtype=np.uint8)
        there = self.store.get([prefix.name(_MANIFEST, end)], [data])[0]
        content, check = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:].tobytes()
        if not there or digest(content) != check:
            return None
        rows = content.reshape(-1, _DIGEST_BYTES)
        return {name: row.tobytes() for name, row in zip(names, rows, strict=True)}
