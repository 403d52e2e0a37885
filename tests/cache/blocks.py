"""Short ways to blocks."""

from typing import Any

import numpy as np

from dsv4kv.cache.blocks import BlockPool, Ids


def ids(*blocks: int) -> Ids:
    return np.array(blocks, dtype=np.int64)


def chain(pool: BlockPool, *hashes: int, parent: int = 0) -> Ids:
    """Blocks of a registered chain, held once."""
    blocks = pool.acquire(len(hashes))
    pool.register(blocks, hashes, (parent, *hashes[:-1]))
    return blocks


def cached(pool: BlockPool, *hashes: int, parent: int = 0) -> Ids:
    """Blocks of a registered chain that nobody holds."""
    blocks = chain(pool, *hashes, parent=parent)
    pool.release(blocks)
    return blocks


def state(pool: BlockPool) -> dict[str, Any]:
    """Everything that a pool knows: equal before and after a refusal."""
    arrays = (pool._refs, pool._hash, pool._parent, pool._generation)
    lists = (pool._children[:-1], pool._live[:-1], pool._used)
    return {
        "blocks": [array.tolist() for array in arrays] + [each.copy() for each in lists],
        "by_hash": {hash_: same.copy() for hash_, same in pool._by_hash.items()},
        "leaves": pool._leaves.copy(),
        "free": pool._free[: pool.num_unused].tolist(),
        "counts": (pool.num_free, pool.num_unused, pool.num_cached, pool.num_held),
    }
