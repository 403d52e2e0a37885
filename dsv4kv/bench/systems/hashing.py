"""Chained hashes of token blocks: equal keys mean equal blocks with equal histories.

``xxh3`` is fast and made for accidents: two different prompts collide once in 2^128.  Someone who
may choose prompts *and* profits from another tenant's cache could look for collisions, so across
a trust boundary take ``sha256`` or ``blake2b``.  Every digest is cut to 128 bits.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xxhash
from numpy.typing import NDArray

Tokens = NDArray[np.integer]
Ids = NDArray[np.int64]
LEAST_COMPUTED = 2
"""Tokens of a prompt that are computed however much of it is cached: one that was computed alone
would be taken for a decode step."""


def resumable_blocks(matched: int, prompt_tokens: int, block_tokens: int) -> int:
    """Max cached blocks a prompt may resume after, ``LEAST_COMPUTED`` tokens before its end."""
    return max(0, min(matched, (prompt_tokens - LEAST_COMPUTED) // block_tokens))


HASHES: dict[str, Callable[[bytes], bytes]] = {
    "xxh3": xxhash.xxh3_128_digest,
    "blake2b": lambda data: hashlib.blake2b(data, digest_size=16).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest()[:16],
}


@dataclass(frozen=True, slots=True)
class Digests:
    """Keys of the full blocks of a prompt.

    Attributes:
        data: 16 bytes for every block.
    """

    KEY_BYTES: ClassVar[int] = 16
    data: bytes

    def __len__(self) -> int:
        """Blocks."""
        return len(self.data) // self.KEY_BYTES

    def block_ids(self) -> Ids:
        """The first 64 bits of every key as int64, never 0 or −1: names for allocators."""
        ids = np.frombuffer(self.data, np.int64)[::2]
        return np.where((ids == 0) | (ids == -1), 2, ids)


class BlockHasher:
    """Hashes the full blocks of prompts, with everything before them."""

    def __init__(self, block_tokens: int, algorithm: str = "xxh3") -> None:
        """``algorithm`` is one of ``HASHES``."""
        self.block_tokens = block_tokens
        self._hash = HASHES[algorithm]
        self._root = self._hash(b"")

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
        return Digests((before.data if before else b"") + b"".join(keys))
