"""Both kinds of index, over keys that come from tokens."""

from collections.abc import Callable

from dsv4kv.prefix.block_hash import BlockHashIndex
from dsv4kv.prefix.index import PrefixIndex
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.radix import RadixIndex

INDEXES: dict[str, Callable[[int, Policy], PrefixIndex]] = {
    "radix": RadixIndex,
    "block_hash": lambda _, policy: BlockHashIndex(policy, digests=True),
}


def make_index(name: str, block_tokens: int, policy: Policy) -> PrefixIndex:
    """An index of tokens (``radix``) or of ``Digests`` of their blocks (``block_hash``)."""
    return INDEXES[name](block_tokens, policy)
