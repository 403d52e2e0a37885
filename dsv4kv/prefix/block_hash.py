"""``block_hash``: whole blocks, each known by a key that stands for its tokens and its history."""

import numpy as np

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.index import Digests, Keys
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.store import PrefixStore, as_chain
from dsv4kv.prefix.tree import Blocks, Ids

LEAST_COMPUTED = 2
"""Tokens of a prompt that are computed however much of it is cached: one that was computed alone
would be taken for a decode step."""


def resumable_blocks(matched: int, prompt_tokens: int, block_tokens: int) -> int:
    """Cached blocks a prompt may resume after: as many as leave ``LEAST_COMPUTED`` tokens."""
    return max(0, min(matched, (prompt_tokens - LEAST_COMPUTED) // block_tokens))


class BlockHashIndex(PrefixStore):
    """Chains of blocks; one value (a cache block) for every key.

    Keys are ``Digests`` of tokens, or the chained ids of a trace (int64; an id stands for a
    block and its history). One index takes one kind.
    """

    whole_blocks = True

    @classmethod
    def over(cls, block_keys: int, policy: Policy) -> "BlockHashIndex":
        """An index of ids, one for each block, whatever the blocks."""
        return cls(policy)

    def __init__(self, policy: Policy | None = None, *, digests: bool = False) -> None:
        """``policy`` None is LRU; ``digests`` says that keys are ``Digests``, not ids."""
        key_bytes = Digests.KEY_BYTES if digests else 8
        super().__init__(policy or make_policy("lru"), Blocks(1), key_bytes, chained=True)
        self._digests = digests

    def encode(self, keys: Keys) -> tuple[bytes, Ids | None]:
        """Bytes of the keys, and the guards that digests carry."""
        if isinstance(keys, Digests) != self._digests:
            wanted = "digests of tokens" if self._digests else "ids, int64"
            raise ConfigError(f"this index was made for keys that are {wanted}.")
        if isinstance(keys, Digests):
            return keys.data, keys.guards
        return as_chain(keys, np.int64, "block ids").tobytes(), None
