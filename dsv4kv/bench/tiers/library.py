"""Prefixes beyond the GPU's memory: stored from a live cache, looked up, restored into one.

A prefix's pages are shared by all prompts that begin as it does; its resume points have windows
and states of their own, and a manifest that is written last: what is not in it does not count. It
has the digest of every object, and what comes back must have that digest before a request may use
it: if one is missing, damaged or another's, the request's blocks are given back, and it begins at
an earlier resume point, or at its first token.

A name is ``<namespace>/<key>.<family>``. The namespace stands for model, weights, formats and
layout; bytes of another have equal sizes and mean something else. The key is SGLang 0.5.23's page
hash: SHA-256 over the key before, nothing for the first, and the page's tokens as little-endian
32-bit numbers. Of a page that a prefix fills in part, it is taken over the tokens there are.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from dsv4kv.bench.tiers.objects import CacheBytes, Objects
from dsv4kv.bench.tiers.store import Bytes, Found, Store
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.errors import CacheError, StoreUnavailable
from dsv4kv.model.plan import CachePlan, Family, Kept, families_of

DIGEST_BYTES = 16
_MAGIC = b"dsv4kv-1"


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
        "families": [asdict(family) for family in families_of(plan)],
        "hadamard": plan.hadamard,
        "rope": plan.rope,
    }
    facts = {"model": plan.config.name, "revision": revision, "layout": layout}
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


class Prefix:
    """A prompt as tiers know it; ``keys`` are its whole blocks' keys."""

    def __init__(self, namespace: str, tokens: ArrayLike, block_tokens: int) -> None:
        self._tokens = np.ascontiguousarray(tokens, dtype="<u4")
        self._namespace = namespace
        self._block_tokens = block_tokens
        self._digests = [b"", *page_digests(self._tokens, block_tokens)]
        self.keys = [digest.hex() for digest in self._digests[1:]]
        self._stems = [f"{self._namespace}/{key}." for key in self.keys]

    def __len__(self) -> int:
        return len(self._tokens)

    def key(self, tokens: int) -> str:
        """The key of its first tokens."""
        blocks, rest = divmod(tokens, self._block_tokens)
        if not rest:
            return self.keys[blocks - 1] if blocks else ""
        last = self._tokens[blocks * self._block_tokens : tokens].tobytes()
        return sha256(self._digests[blocks] + last).hexdigest()

    def name(self, tokens: int, what: str) -> str:
        """The name of what belongs to its first tokens: an object of a family, or a manifest."""
        return f"{self._namespace}/{self.key(tokens)}.{what}"

    def block_names(self, what: str, blocks: int) -> list[str]:
        """Names of what belongs to the first blocks: objects of a family, or manifests."""
        return [stem + what for stem in self._stems[:blocks]]

    def names(self, family: Family, tokens: int) -> list[str]:
        """Names of the objects of a family that its first ``tokens`` tokens need."""
        count = family.objects(tokens)
        if family.kept is not Kept.PAGES:
            return [self.name(tokens, family.name)] * count
        names = self.block_names(family.name, min(count, tokens // self._block_tokens))
        if len(names) < count:
            names.append(self.name(tokens, family.name))
        return names


def digest(data: Bytes) -> bytes:
    """16 bytes that stand for an object's: made for accidents, at memory speed."""
    return xxhash.xxh3_128_digest(data.data)


@dataclass(frozen=True)
class Manifest:
    """Objects of a prefix."""

    tokens: int  # of the prefix
    digests: dict[str, list[bytes]]
    """Of the objects of every family that it has, by the family's name."""

    def dump(self) -> Bytes:
        """As it is stored."""
        whole = b"".join(each for digests in self.digests.values() for each in digests)
        data = _MAGIC + self.tokens.to_bytes(8, "little") + whole
        return np.frombuffer(data + xxhash.xxh3_128_digest(data), dtype=np.uint8)

    @staticmethod
    def size(families: Iterable[Family], tokens: int) -> int:
        """Bytes of a manifest of these families."""
        objects = sum(family.objects(tokens) for family in families)
        return len(_MAGIC) + 8 + DIGEST_BYTES * (objects + 1)

    @classmethod
    def load(cls, data: Bytes, families: Iterable[Family], tokens: int) -> "Manifest | None":
        """Read what ``dump`` wrote; None if it is another's, or damaged."""
        content, check = data[:-DIGEST_BYTES].tobytes(), data[-DIGEST_BYTES:].tobytes()
        head = _MAGIC + tokens.to_bytes(8, "little")
        if xxhash.xxh3_128_digest(content) != check or not content.startswith(head):
            return None
        places = range(len(head), len(content), DIGEST_BYTES)
        each = (content[at : at + DIGEST_BYTES] for at in places)
        digests = {f.name: [next(each) for _ in range(f.objects(tokens))] for f in families}
        return cls(tokens, digests)


def resume_points(
    pages: Sequence[NDArray[np.bool_]], tails: Sequence[NDArray[np.bool_]], count: int
) -> NDArray[np.int64]:
    """Blocks after which a request can resume: SGLang's ``batch_exists_v2``.

    A family that every page needs allows 1 … first missing; one that is needed at the resume point
    alone allows wherever it is; what all allow is the answer.

    ``pages`` and ``tails``: of ``count`` blocks, whose objects are there, bool[count] for each
    family of pages and each other family.
    """
    allowed = np.ones(count, dtype=np.bool_)
    for found in pages:
        allowed &= np.logical_and.accumulate(found)
    for found in tails:
        allowed &= found
    return np.flatnonzero(allowed) + 1


_CHUNK_BYTES = 32 << 20  # moved at a time: enough for many threads of a store, little of memory
_MANIFEST = "manifest"
_ATTEMPTS = 4  # resume points that are tried before a prompt is computed from its first token
Placed = tuple[Family, int, Objects]
"""Objects of a family, and the number of the first in the prefix."""


@dataclass(frozen=True)
class Restored:
    """What a request has got back."""

    tokens: int = 0  # that it holds: computing goes on here
    read_bytes: int = 0  # read for it
    failed: int = 0  # resume points that were tried before, and were not all there


class Library:
    """Prefixes of one cache in a store; one that cannot answer has none, and keeps none.

    ``damaged_objects`` counts those found with other bytes than were stored, ``failures`` calls
    that the store could not answer, and ``failure`` is the first one's sentence.
    """

    def __init__(self, cache: CacheBytes, store: Store, *, revision: str) -> None:
        self.cache, self.store = cache, store
        self.namespace = namespace_of(cache.manager.plan, revision)
        self.block_tokens = cache.manager.plan.schemas[0].block_tokens
        self.damaged_objects = self.failures = 0
        self.failure = ""
        families = cache.families.values()
        self._pages = [family for family in families if family.kept is Kept.PAGES]
        self._tails = [family for family in families if family.kept is not Kept.PAGES]
        block_bytes = sum(family.object_bytes for family in self._pages)
        self._chunk = max(1, _CHUNK_BYTES // max(1, block_bytes))
        self._inside: dict[str, set[int]] = {}  # resume points inside a block, by the key before
        self._rooms: dict[str, Objects] = {}
        self._digests: dict[str, bytes] = {}  # of what went through here, by name
        self._written: list[str] = []

    def prefix(self, tokens: ArrayLike) -> Prefix:
        """A prompt's token ids as stores know them."""
        return Prefix(self.namespace, tokens, self.block_tokens)

    def clear(self) -> None:
        """Delete what was stored by this library."""
        self._delete(self._written)
        self._written = []

    def lookup(self, prefix: Prefix) -> list[int]:
        """After which of a prompt's tokens a request can resume, rising.

        Inside a block these are the places where a prompt of this library ended or this one does.
        """
        size, inside = self.block_tokens, self._places_inside(prefix)
        marked = self._exists(prefix.block_names(_MANIFEST, len(prefix.keys)))
        ends = np.flatnonzero(marked) + 1
        last = max([*ends[-1:].tolist(), *(n // size for n in inside)], default=0)
        pages = [self._exists(prefix.names(family, last * size)) for family in self._pages]
        reach = len(resume_points(pages, [], last))
        tails = [self._tails_at(prefix, family, marked[:reach]) for family in self._tails]
        points = (resume_points([], [marked[:reach], *tails], reach) * size).tolist()
        points += [n for n in inside if n // size <= reach and self._is_there(prefix, n)]
        return sorted(points)

    def store_prefix(self, prefix: Prefix, slot: int) -> int:
        """Store what a request holds now: whole pages, and a resume point at the prefix's end.

        ``prefix`` is its tokens so far, or more of its prompt. Returns the tokens after which it
        can be resumed, 0 if it cannot; raises ``CacheError`` for a request with more tokens.
        """
        tokens = int(self.cache.manager.tokens[slot])
        if tokens > len(prefix):
            raise CacheError(
                f"slot {slot} has {tokens} tokens and the prefix {len(prefix)}: give the tokens "
                "that the request has."
            )
        for part in self._parts(tokens // self.block_tokens):
            self._store_pages(prefix, slot, part)
        if not 0 < tokens == len(prefix):
            return 0
        if not self._is_there(prefix, tokens):
            self._store_point(prefix, slot, tokens)
        return tokens if self._is_there(prefix, tokens) else 0

    def restore(self, prefix: Prefix, slot: int) -> Restored:
        """Give a request that was just admitted as much of its prompt as can be.

        Raises ``OutOfBlocks`` where the prefix does not fit and ``CacheError`` where the slot
        holds something already; in both cases it holds nothing more than before.
        """
        if self.cache.manager.tokens[slot]:
            raise CacheError(f"slot {slot} has tokens already: restore before its first step.")
        points = self.lookup(prefix)[::-1]
        for failed, point in enumerate(points[:_ATTEMPTS]):
            if restored := self._load(prefix, slot, point, failed):
                return restored
            manager = self.cache.manager  # let the slot be as if it had just been admitted
            prepare_forward(manager, [slot], [int(manager.tokens[slot])], [0])
            for states in manager.states.values():
                states.reset_slot(slot)
        return Restored(failed=len(points[:_ATTEMPTS]))

    # What is there

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """Ask the store; a call that it cannot answer is counted."""
        try:
            yield
        except StoreUnavailable as error:
            self.failures += 1
            self.failure = self.failure or str(error)

    def _exists(self, names: Sequence[str]) -> Found:
        with self._tried():
            return self.store.exists(names)
        return np.zeros(len(names), dtype=np.bool_)

    def _tails_at(
        self, prefix: Prefix, family: Family, marked: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """At which marked blocks a window or state is there, or not needed."""
        found, size = marked.copy(), self.block_tokens
        needed = [n for n in np.flatnonzero(marked).tolist() if family.objects((n + 1) * size)]
        found[needed] = self._exists([prefix.name((n + 1) * size, family.name) for n in needed])
        return found

    def _places_inside(self, prefix: Prefix) -> list[int]:
        """Places inside blocks where this prompt, or one that began as it does, ended."""
        size, places = self.block_tokens, {len(prefix)}
        if self._inside:
            for number, key in enumerate(["", *prefix.keys]):
                places |= {number * size + rest for rest in self._inside.get(key, ())}
        return sorted(n for n in places if n % size and n <= len(prefix))

    def _is_there(self, prefix: Prefix, tokens: int) -> bool:
        names = [name for _, _, name in self._own(prefix, tokens)]
        return bool(self._exists([*names, prefix.name(tokens, _MANIFEST)]).all())

    def _own(self, prefix: Prefix, tokens: int) -> Iterator[tuple[Family, int, str]]:
        """Objects that a resume point shares with no other: family, number in it, name."""
        blocks = tokens // self.block_tokens
        for family in (*self._pages, *self._tails):
            number = blocks if family.kept is Kept.PAGES else 0
            if family.objects(tokens) > number:
                yield family, number, prefix.name(tokens, family.name)

    def _parts(self, blocks: int) -> list[range]:
        return [range(at, min(at + self._chunk, blocks)) for at in range(0, blocks, self._chunk)]

    # Storing

    def _write(self, names: Sequence[str], data: Sequence[Bytes]) -> bool:
        """Keep objects, or none; whether they are kept."""
        with self._tried():
            self.store.put(names, data)
            self._written += names
            return True
        self._delete(names)
        return False

    def _delete(self, names: Sequence[str]) -> None:
        with self._tried():
            self.store.delete(names)

    def _store_pages(self, prefix: Prefix, slot: int, part: range) -> None:
        end = part.stop * self.block_tokens
        names = [prefix.names(family, end)[part.start :] for family in self._pages]
        there = [self._exists(each) for each in names]
        some = np.flatnonzero(~np.logical_and.reduce(there)).tolist() if there else []
        if not some:
            return
        chosen, data = list[str](), list[Bytes]()
        for family, of_family in zip(self._pages, names, strict=True):
            units, room = self.cache.units(family, slot, end), self._room(family, len(some))
            self.cache.take(family, units[:, [part[i] for i in some]], room)
            chosen += [of_family[i] for i in some]
            data += list(room.reshape(len(some), -1))
        self._digests |= {name: digest(each) for name, each in zip(chosen, data, strict=True)}
        self._write(chosen, data)

    def _store_point(self, prefix: Prefix, slot: int, tokens: int) -> None:
        """Store what a resume point does not share with others, and last its manifest."""
        own = dict[str, Bytes]()
        for family, number, name in self._own(prefix, tokens):
            data = self.cache.new_objects(family, 1)
            self.cache.take(family, self.cache.units(family, slot, tokens)[:, [number]], data)
            own[name] = data.reshape(-1)
        self._digests |= {name: digest(data) for name, data in own.items()}
        digests = dict[str, list[bytes]]()
        for family in (*self._pages, *self._tails):
            known = self._learn(prefix.names(family, tokens), family.object_bytes)
            if known is None:
                return
            digests[family.name] = known
        if rest := tokens % self.block_tokens:
            self._inside.setdefault(prefix.key(tokens - rest), set()).add(rest)
        if self._write(list(own), list(own.values())):
            manifest = Manifest(tokens, digests).dump()
            self._write([prefix.name(tokens, _MANIFEST)], [manifest])

    def _learn(self, names: Sequence[str], size: int) -> list[bytes] | None:
        """Digests of objects as they are kept, read if another process stored them; or None."""
        strange = [name for name in names if name not in self._digests]
        most = max(1, _CHUNK_BYTES // size)
        for first in range(0, len(strange), most):
            some = strange[first : first + most]
            room = np.empty((len(some), size), np.uint8)
            if not self._get(some, list(room)).all():
                return None
            self._digests |= {name: digest(each) for name, each in zip(some, room, strict=True)}
        return [self._digests[name] for name in names]

    # Restoring

    def _get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        with self._tried():
            return self.store.get(names, into)
        return np.zeros(len(names), dtype=np.bool_)

    def _read(self, names: Sequence[str], digests: Sequence[bytes], into: Sequence[Bytes]) -> bool:
        """Read objects; False if one is not there as it was stored, and is deleted then."""
        found = self._get(names, into)
        rows = zip(names, digests, into, found.tolist(), strict=True)
        wrong = [name for name, wanted, data, there in rows if not there or digest(data) != wanted]
        # what is there and cannot be read has another length than it must
        still = self._exists(wrong).tolist() if wrong else []
        damaged = [name for name, there in zip(wrong, still, strict=True) if there]
        if damaged:
            self.damaged_objects += len(damaged)
            self._delete(damaged)
        for name in wrong:
            self._digests.pop(name, None)
        return not wrong

    def _open(self, prefix: Prefix, tokens: int) -> Manifest | None:
        """A resume point's manifest; None if it is gone or damaged."""
        name, families = prefix.name(tokens, _MANIFEST), [*self._pages, *self._tails]
        data = np.empty(Manifest.size(families, tokens), dtype=np.uint8)
        if not self._get([name], [data])[0]:
            return None
        manifest = Manifest.load(data, families, tokens)
        if manifest is None:
            self.damaged_objects += 1
            self._delete([name])
        return manifest

    def _load(self, prefix: Prefix, slot: int, tokens: int, failed: int) -> Restored | None:
        """Restore a request from a resume point; None if something is not there."""
        manifest = self._open(prefix, tokens)
        if manifest is None:
            return None
        named = list(self._own(prefix, tokens))
        own = [(family, n, self.cache.new_objects(family, 1)) for family, n, _ in named]
        digests = [manifest.digests[family.name][number] for family, number, _ in named]
        into = [data.reshape(-1) for _, _, data in own]
        if not self._read([name for _, _, name in named], digests, into):
            return None
        read_bytes = sum(data.nbytes for _, _, data in own)
        prepare_forward(self.cache.manager, [slot], [0], [tokens])
        for part in self._parts(tokens // self.block_tokens):
            pages = self._read_pages(prefix, manifest, part)
            if pages is None:
                return None
            read_bytes += sum(data.nbytes for _, _, data in pages)
            self._put(slot, tokens, pages)
        self._put(slot, tokens, own)
        return Restored(tokens, read_bytes, failed)

    def _put(self, slot: int, tokens: int, placed: Sequence[Placed]) -> None:
        for family, first, data in placed:
            units = self.cache.units(family, slot, tokens)[:, first : first + len(data)]
            self.cache.put(family, units, data)

    def _read_pages(self, prefix: Prefix, manifest: Manifest, part: range) -> list[Placed] | None:
        """Whole pages, in memory that the next ones are read into; None if one is not there."""
        names, digests, into, placed = list[str](), list[bytes](), list[Bytes](), list[Placed]()
        for family in self._pages:
            room = self._room(family, len(part))
            placed.append((family, part.start, room))
            names += prefix.names(family, part.stop * self.block_tokens)[part.start :]
            digests += manifest.digests[family.name][part.start : part.stop]
            into += list(room.reshape(len(part), -1))
        return placed if self._read(names, digests, into) else None

    def _room(self, family: Family, count: int) -> Objects:
        """Memory for objects, used again and again: new pages take longer than what is copied."""
        room = self._rooms.get(family.name)
        if room is None or len(room) < count:
            room = self.cache.new_objects(family, max(count, self._chunk))
            self._rooms[family.name] = room
        return room[:count]
