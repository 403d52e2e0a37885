"""``radix``: tokens themselves are the keys; a prefix is found to the token."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.index import Insertion, Keys, Lease
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.store import New, PrefixStore, as_chain
from dsv4kv.prefix.tree import Blocks, Ids, Rows, Run, path_to

_MOST = 2**31 - 1
CopyKv = Callable[[int, int, int], None]


class RadixIndex(PrefixStore):
    """Chains of tokens over a paged cache; a value is a block of ``block_tokens`` tokens.

    A match may end inside a block: that block is the match's last value, its first tokens are
    valid, and whoever writes after them copies it first.
    """

    whole_blocks = False

    @classmethod
    def over(cls, block_keys: int, policy: Policy) -> "RadixIndex":
        """An index of keys, so many of which make a block."""
        return cls(block_keys, policy)

    def __init__(self, block_tokens: int, policy: Policy | None = None) -> None:
        """``policy`` None is LRU."""
        if block_tokens <= 0:
            raise ConfigError(f"a block of {block_tokens} tokens holds nothing: give at least 1.")
        super().__init__(policy or make_policy("lru"), Blocks(block_tokens), 4, chained=False)

    def encode(self, keys: Keys) -> tuple[bytes, Ids | None]:
        """Tokens as int32."""
        return encode_tokens(keys), None


class Found(NamedTuple):
    """A prefix and the row it is in.

    Attributes:
        length: Tokens of it; 0 if nothing is cached.
        slot: The row; −1 if nothing is.
        version: The slot's version when its content was recorded.
    """

    length: int
    slot: int
    version: int


NOTHING = Found(0, -1, -1)


class PrefixCacheManager(PrefixStore):
    """Chains of tokens over rows: one contiguous KV row (slot) per prompt.

    What is found is as valid as the slot's version: given how to ask for it, the cache finds only
    rows that still hold what they held; otherwise compare it with ``SlotAllocator.version``.
    """

    def __init__(
        self,
        max_capacity: int,
        policy: Policy | None = None,
        copy_kv: CopyKv | None = None,
        version: Callable[[int], int] | None = None,
    ) -> None:
        """Start empty.

        Args:
            max_capacity: Tokens it may remember.
            policy: What is forgotten first; None is LRU.
            copy_kv: Called as (from_slot, to_slot, tokens) by ``copy_kv``.
            version: The version a slot has now, as ``SlotAllocator.version`` gives it; None:
                slots are never handed out again.
        """
        if max_capacity <= 0:
            raise ConfigError(
                f"a prefix cache of {max_capacity} tokens holds nothing: give at least 1."
            )
        super().__init__(policy or make_policy("lru"), Rows(), 4, chained=False)
        self.max_capacity = max_capacity
        self._copy, self._version = copy_kv, version

    def encode(self, keys: Keys) -> tuple[bytes, Ids | None]:
        """Tokens as int32."""
        return encode_tokens(keys), None

    def fit(self, run: Run, keys: bytes) -> bytes:
        """As many new keys as have room once all that may go has gone."""
        keeper, width = self._keeper, self._key_bytes
        missing = len(keys) // width - (self.max_capacity - keeper.cached)
        if missing <= 0:
            return keys
        path = path_to(run)
        keeper.hold(path)  # the chain itself does not go
        evicted = min(missing, keeper.evictable)
        keeper.evict(evicted)
        keeper.let_go(path)
        return keys[: len(keys) - (missing - evicted) * width]

    def store(self, run: Run, new: New) -> tuple[Insertion, Run]:
        """Store what is new of a chain; its row holds what was cached before, too."""
        for above in path_to(run):
            above.values = np.concatenate([new.values, *self._others(above, int(new.values[0]))])
        return super().store(run, new)

    def insert_row(self, tokens: Keys, slot: int, version: int) -> Insertion:
        """Remember that a slot of a version holds the KV of all ``tokens``."""
        return self.insert(tokens, np.array([slot, version], dtype=np.int64))

    def extend_row(self, lease: Lease, tokens: Keys, slot: int, version: int) -> Insertion:
        """Remember it of the tokens that a lease holds and of ``tokens``, which follow them."""
        return self.extend(lease, tokens, np.array([slot, version], dtype=np.int64))

    def find(self, tokens: Keys) -> Found:
        """Look up the longest prefix that a row still holds, and the row; counts as a use."""
        with self._lock:
            lease = self._pin(tokens)
            found = self._newest_row(lease)
            self._release(lease)
            return found

    def copy_kv(self, tokens: Keys, to_slot: int) -> Found:
        """Copy the longest prefix that a row still holds into a slot; kept while it is copied."""
        if self._copy is None:
            raise ConfigError("no copy_kv was given when the prefix cache was made.")
        lease = self.pin(tokens)
        try:
            found = self._newest_row(lease)
            if found.length:
                self._copy(found.slot, to_slot, found.length)
            return found
        finally:
            self.release(lease)

    def _newest_row(self, lease: Lease) -> Found:
        """The longest of what a lease holds that is still in a row."""
        for run in reversed(path_to(lease.run) if lease.run else []):
            for slot, version in run.values.reshape(-1, 2).tolist():
                if self._is_valid(slot, version):
                    return Found(run.end, slot, version)
        return NOTHING

    def _others(self, run: Run, slot: int) -> list[Ids]:
        """Rows of a run in other slots, as long as they are valid and that is known."""
        if self._version is None:
            return []
        rows = run.values.reshape(-1, 2)
        return [row for row in rows if row[0] != slot and self._is_valid(*row.tolist())]

    def _is_valid(self, slot: int, version: int) -> bool:
        return self._version is None or self._version(slot) == version


def encode_tokens(tokens: Keys) -> bytes:
    """Tokens as bytes of int32; ``ConfigError`` if they are negative or too large."""
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1:
        return tokens.tobytes()
    wide = as_chain(tokens, np.int64, "tokens")
    if wide.size and not (wide.min() >= 0 and wide.max() <= _MOST):
        raise ConfigError(f"tokens must be 0..{_MOST}.")
    return wide.astype(np.int32).tobytes()
