"""The prefix indexes over a paged cache, by name."""

from collections.abc import Callable

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.block_hash import BlockHashIndex
from dsv4kv.prefix.index import PrefixIndex
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.radix import RadixIndex


def _block_hash(block_tokens: int, policy: Policy) -> PrefixIndex:
    return BlockHashIndex(policy, digests=True)


INDEXES: dict[str, Callable[[int, Policy], PrefixIndex]] = {
    "radix": RadixIndex,
    "block_hash": _block_hash,
}


def make_index(name: str, block_tokens: int, policy: Policy) -> PrefixIndex:
    """Make an index of tokens (``radix``) or of ``Digests`` of their blocks (``block_hash``).

    Raises:
        ConfigError: There is no such index.
    """
    if name not in INDEXES:
        raise ConfigError(f"{name!r} is no prefix index: choose one of {', '.join(INDEXES)}.")
    return INDEXES[name](block_tokens, policy)
