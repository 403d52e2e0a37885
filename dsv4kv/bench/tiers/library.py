"""Prefixes beyond the GPU's memory: stored from a live cache, looked up, restored into one.

A prefix is whole blocks: a page of every family for each, and the windows and states of its end.
A manifest, written last, makes it a resume point: what has none is not found. It has the digest of
every object, and what is read must have that digest before a request may use it.

A name is ``<namespace>/<key>.<family>``. The namespace stands for model, weights, formats and
layout; bytes of another have equal sizes and mean something else. The key is SGLang 0.5.23's page
hash: SHA-256 over the key before, nothing for the first, and the page's tokens as little-endian
32-bit numbers.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256

import numpy as np
import xxhash
from numpy.typing import ArrayLike

from dsv4kv.bench.tiers.objects import CacheBytes, Objects
from dsv4kv.bench.tiers.store import Bytes, Store
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.errors import CacheError
from dsv4kv.model.plan import CachePlan, Family, Kept, families_in

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


def namespace_of(plan: CachePlan, revision: str) -> str:
    """32 digits for caches whose bytes mean the same: objects of others may have equal sizes.

    ``revision``: of the weights, which fill the same layout with other numbers.
    """
    layout = {
        "config": plan.config.model_dump(mode="json"),
        "families": [asdict(family) for family in families_in(plan.schemas)],
        "hadamard": plan.hadamard,
        "rope": plan.rope,
    }
    facts = {"model": plan.config.name, "revision": revision, "layout": layout}
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


class Prefix:
    """The whole blocks of a prompt, as stores know them by their keys."""

    def __init__(self, namespace: str, tokens: ArrayLike, block_tokens: int) -> None:
        self.keys = [digest.hex() for digest in page_digests(tokens, block_tokens)]
        self._stems = [f"{namespace}/{key}." for key in self.keys]

    def __len__(self) -> int:
        return len(self.keys)

    def name(self, what: str, blocks: int) -> str:
        """The name of what belongs to the end of its first blocks: of a family, or a manifest."""
        return self._stems[blocks - 1] + what

    def names(self, what: str, blocks: int) -> list[str]:
        """Names of what belongs to the ends of its first blocks, each."""
        return [stem + what for stem in self._stems[:blocks]]


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

    def __init__(self, cache: CacheBytes, store: Store, *, revision: str) -> None:
        self.cache, self.store = cache, store
        self.namespace = namespace_of(cache.manager.plan, revision)
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
        return Prefix(self.namespace, tokens, self.block_tokens)

    def clear(self) -> None:
        """Delete what was stored by this library."""
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
        """Store what a request holds; raises ``CacheError`` unless that is the prefix."""
        tokens, end = int(self.cache.manager.tokens[slot]), len(prefix)
        if not tokens or tokens != end * self.block_tokens:
            raise CacheError(
                f"slot {slot} has {tokens} tokens and the prefix {end} blocks of "
                f"{self.block_tokens}: give the tokens that the request has, in whole blocks."
            )
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
        read_bytes = 0
        for pieces in self._pieces(prefix, slot, end):
            if damaged := self._read(pieces, digests):
                return Restored(damaged=damaged)
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

    def _read(self, pieces: Sequence[_Piece], digests: dict[str, bytes]) -> str:
        """Read objects; the name of the first that is not there as it was stored, or empty."""
        names = [name for each in pieces for name in each.names]
        into = [row for each in pieces for row in each.rows]
        found = self.store.get(names, into)
        for name, row, there in zip(names, into, found.tolist(), strict=True):
            if not there or digest(row) != digests[name]:
                return name
        return ""
