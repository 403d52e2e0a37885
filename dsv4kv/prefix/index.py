"""What every prefix index can do, and what it says.

A request's life: ``pin`` the longest cached prefix of its keys, ``evict`` what is missing to
compute the rest, ``extend`` the lease by keys and values once they are computed (chunk by chunk,
and when decoding has filled more blocks), ``release``. An index never talks to an allocator:
values it takes over (``Insertion.taken``) and values it gives up (``evict``) are returned, and
whoever holds both sides counts references.

Chained hashes of token blocks: equal keys mean equal blocks with equal histories. ``xxh3`` is fast
and made for accidents: two different prompts meet once in 2^128. Someone who may choose prompts
*and* profits from another tenant's cache could look for collisions, so across a trust boundary
take ``sha256`` or ``blake2b``, and a salt for each tenant. Every digest is cut to 128 bits. Each
block also has a guard, a product with secret random numbers that every hasher draws, which nobody
outside can steer: keys that are equal while guards differ are counted as collisions and not
reused. So one hasher serves one index.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.tree import Ids, Run

Tokens = NDArray[np.integer]


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def _blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


HASHES: dict[str, Callable[[bytes], bytes]] = {
    "xxh3": xxhash.xxh3_128_digest,
    "blake2b": _blake2b,
    "sha256": _sha256,
}


@dataclass(frozen=True, slots=True)
class Digests:
    """Keys of the full blocks of a prompt.

    Attributes:
        data: 16 bytes for every block.
        guards: int64, one for every block.
    """

    KEY_BYTES: ClassVar[int] = 16
    data: bytes
    guards: Ids

    def __len__(self) -> int:
        """Blocks."""
        return len(self.guards)

    def after(self, count: int) -> "Digests":
        """Keys of the blocks that follow the first ``count``."""
        return Digests(self.data[count * self.KEY_BYTES :], self.guards[count:])

    def block_ids(self) -> Ids:
        """The first 64 bits of every key as int64, never 0 or −1: names for allocators."""
        ids = np.frombuffer(self.data, np.int64)[::2]
        return np.where((ids == 0) | (ids == -1), 2, ids)


class BlockHasher:
    """Hashes the full blocks of prompts, with everything before them."""

    def __init__(self, block_tokens: int, algorithm: str = "xxh3", salt: bytes = b"") -> None:
        """Choose how.

        Args:
            block_tokens: Tokens of a block.
            algorithm: One of ``HASHES``.
            salt: Prompts of different salts have no keys in common.

        Raises:
            ConfigError: There is no such algorithm, or a block without tokens.
        """
        if algorithm not in HASHES:
            raise ConfigError(f"{algorithm!r} is no hash: choose one of {', '.join(HASHES)}.")
        if block_tokens <= 0:
            raise ConfigError(f"a block of {block_tokens} tokens holds nothing: give at least 1.")
        self.block_tokens = block_tokens
        self._hash = HASHES[algorithm]
        self._root = self._hash(salt)
        self._secret = np.random.default_rng().integers(1, 2**63, block_tokens, dtype=np.int64)

    def digest(self, tokens: Tokens, before: Digests | None = None) -> Digests:
        """Hash the full blocks of ``tokens``; an incomplete last one has no key.

        Args:
            tokens: Whole numbers in one row, 0..2^31−1.
            before: Keys of the blocks before them: the result is those and the new ones, as
                decoding fills block after block.
        """
        size = self.block_tokens
        whole = np.ascontiguousarray(tokens[: len(tokens) // size * size], dtype=np.int32)
        data, keys, hash_ = whole.tobytes(), [], self._hash
        key = before.data[-Digests.KEY_BYTES :] if before else self._root
        for at in range(0, len(data), 4 * size):
            key = hash_(key + data[at : at + 4 * size])
            keys.append(key)
        guards = np.einsum("ij,j->i", whole.reshape(-1, size), self._secret, dtype=np.int64)
        if before is None:
            return Digests(b"".join(keys), guards)
        joined = np.concatenate([before.guards, guards])
        return Digests(before.data + b"".join(keys), joined)


Keys = NDArray[Any] | Digests


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of a chain.

    Attributes:
        length: Keys of it.
        values: int64: what the index holds for them; the last may be a block that more keys
            would fill.
    """

    length: int
    values: Ids


class Lease:
    """A match that stays cached until it is released.

    Attributes:
        length: Keys held; grows as the lease is extended.
        values: int64: what the index held for the prefix when it was pinned.
        request: Number of the ``pin`` it came from, from 0.
        run: The deepest run it holds; None once it is released.
        moment: When it was extended last, as its index's policy counts time.
    """

    __slots__ = ("length", "moment", "request", "run", "values")

    def __init__(self, length: int, values: Ids, request: int, run: Run) -> None:
        """Made by ``pin``."""
        self.length = length
        self.values = values
        self.request = request
        self.run: Run | None = run
        self.moment = 0


class Insertion(NamedTuple):
    """What ``insert`` or ``extend`` found and did.

    Attributes:
        present: Keys that were cached before; values given for them stay the caller's.
        stored: Keys of the chain that are cached now; fewer than given where no room was left.
        taken: int64: values that the index holds from now on.
    """

    present: int
    stored: int
    taken: Ids


@dataclass(frozen=True, slots=True)
class IndexStats:
    """Counts since the index was made, in keys; ``held``, ``pinned``, ``evictable`` in values.

    Attributes:
        lookups: Chains pinned.
        asked: Keys they had.
        hit: Keys of them that were cached.
        inserted: Keys stored.
        evicted: Keys evicted.
        collisions: Matches cut short because the guard of an equal key differed.
        cached: Keys cached now.
        held: Values held now (keys, where rows hold them).
        pinned: Values that leases hold.
        evictable: Values that ``evict`` could free.
        runs: Runs in the tree.
    """

    lookups: int
    asked: int
    hit: int
    inserted: int
    evicted: int
    collisions: int
    cached: int
    held: int
    pinned: int
    evictable: int
    runs: int


class PrefixIndex(Protocol):
    """Chains of keys, what is cached for them, and what goes first."""

    @property
    def held(self) -> int:
        """Values held now (keys, where rows hold them)."""

    @property
    def evictable(self) -> int:
        """Values that ``evict`` could free."""

    @property
    def blockwise(self) -> bool:
        """Whether nothing depends on how many calls store or evict what one could."""

    def match(self, keys: Keys) -> Match:
        """Look the longest cached prefix up; changes nothing, counts nothing."""

    def match_length(self, keys: Keys) -> int:
        """The length of that prefix alone."""

    def pin(self, keys: Keys) -> Lease:
        """Use the longest cached prefix: it is kept until the lease is released."""

    def insert(self, keys: Keys, values: Ids) -> Insertion:
        """Store a chain, which counts as one more use of it.

        Args:
            keys: The chain from its first key on.
            values: int64: of the whole chain, or of its last keys from a cached one on.
        """

    def extend(self, lease: Lease, keys: Keys, values: Ids) -> Insertion:
        """Store what a request has computed after what it holds, and hold that, too.

        Args:
            lease: What the request holds: its first ``lease.length`` keys.
            keys: Those that follow.
            values: int64: of these keys, or of their last from a cached one on.
        """

    def release(self, lease: Lease) -> None:
        """End a lease; ``NotOwner`` if it has ended before."""

    def evict(self, count: int) -> Ids:
        """Evict ``count`` values, children first; ``OutOfBlocks`` (and nothing) if too few may."""

    def stats(self) -> IndexStats:
        """Counts so far."""
