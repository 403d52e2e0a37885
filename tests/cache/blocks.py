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
    cells = pool._claims, pool._generation, pool._children, pool._stamp
    return {
        "cells": [array[: pool.num_blocks].tolist() for array in cells],
        "hashes": pool._hash.copy(),
        "by_hash": (
            pool._by_hash.copy(),
            {hash_: row.copy() for hash_, row in pool._twins.items()},
        ),
        "queue": [(stamp, row[:left].tolist()) for stamp, row, left in pool._queue],
        "free": pool._free[: pool.num_unused].tolist(),
        "counts": (pool.num_free, pool.num_unused, pool.num_cached, pool.num_held),
    }
