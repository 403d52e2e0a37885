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
    lists = pool._hash, pool._parent, pool._children, pool._live, pool._stamp
    return {
        "lists": [cells[:-1] for cells in lists],
        "arrays": [array.tolist() for array in (pool._refs, pool._generation)],
        "by_hash": {hash_: blocks.copy() for hash_, blocks in pool._by_hash.items()},
        "queue": [(stamp, row.copy()) for stamp, row in pool._queue],
        "free": pool._free[: pool.num_unused].tolist(),
        "counts": (pool.num_free, pool.num_unused, pool.num_cached, pool.num_held),
    }
