"""``block_hash``: whole blocks, each known by a key that stands for its tokens and its history."""

import numpy as np

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.index import Digests, Keys
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.store import PrefixStore, as_chain
from dsv4kv.prefix.tree import Blocks, Ids


class BlockHashIndex(PrefixStore):
    """Chains of blocks; one value (a cache block) for every key.

    Keys are ``Digests`` of tokens, or the chained ids of a trace (int64; an id stands for a
    block and its history). One index takes one kind.
    """

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
