"""Checking a registration of hashes before anything is changed."""

from collections.abc import Sequence

import numpy as np

from dsv4kv.cache.allocator import Ids
from dsv4kv.cache.allocators.hashes import NO_HASH
from dsv4kv.cache.allocators.states import BlockStates
from dsv4kv.errors import CacheError


def plan_registration(
    states: BlockStates, ids: Ids, hashes: Sequence[int], parent_hashes: Sequence[int]
) -> list[tuple[int, int, int]]:
    """What is new: (block, hash, the block before or the chains' root).

    Raises:
        CacheError: A hash cannot be, contradicts what a block has, or follows an unknown one.
    """
    if not len(ids) == len(hashes) == len(parent_hashes):
        raise CacheError(
            f"{len(ids)} blocks, {len(hashes)} hashes and {len(parent_hashes)} parents were "
            "given: give one of each for every block. Nothing was changed."
        )
    new: dict[int, tuple[int, int, int]] = {}
    here: dict[int, int] = {}  # blocks of this call, by hash
    rows = zip(np.asarray(ids).tolist(), map(int, hashes), map(int, parent_hashes), strict=True)
    for block, hash_, parent_hash in rows:
        known = new[block][1] if block in new else states.hashes.of_block_at[block]
        if hash_ in (NO_HASH, -1) or known not in (NO_HASH, hash_):
            raise CacheError(_contradiction(block, hash_, known))
        if known == NO_HASH:
            new[block] = block, hash_, _parent(states, here, block, parent_hash)
        here[hash_] = block
    return list(new.values())


def _parent(states: BlockStates, here: dict[int, int], block: int, parent_hash: int) -> int:
    if parent_hash == NO_HASH:
        return states.chains.root
    parent = here.get(parent_hash, states.hashes.find(parent_hash))
    if parent is None:
        raise CacheError(
            f"block {block} is to follow hash {parent_hash}, which no block has: register a "
            "chain from its first block on. Nothing was changed."
        )
    return parent


def _contradiction(block: int, hash_: int, known: int) -> str:
    if hash_ in (NO_HASH, -1):
        return f"block {block}: {hash_} is no hash; 0 and −1 are never used. Nothing was changed."
    return (
        f"block {block} has hash {known} and cannot get {hash_}: its content is cached or in "
        "use under the first. Nothing was changed."
    )
