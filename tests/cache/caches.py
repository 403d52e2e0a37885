"""Small caches, and everything they know, for tests."""

from typing import Any

import numpy as np

from dsv4kv.cache.blocks import BlockPool, Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import CachePlan, plan_cache
from dsv4kv.model.presets import load_model

FLASH = load_model("v4-flash")
LAYERS = (1, 2, 3, 4, 5)  # of V4-Flash: SWA, CSA, HCA, CSA, HCA


def small_plan(config: DSV4Config = FLASH, **changes: Any) -> CachePlan:
    """Five layers of V4-Flash, 3 slots of 1,000 tokens, as far as ``changes`` leave it."""
    sizes: dict[str, Any] = {"max_context_tokens": 1000, "num_slots": 3}
    if config is FLASH:
        sizes["layers"] = LAYERS
    return plan_cache(config, **(sizes | changes))


def bookkeeping(**changes: Any) -> KVCacheManager:
    """The bookkeeping of a small cache, without its memory."""
    return KVCacheManager(small_plan(**changes), data=False)


def admit(manager: KVCacheManager, count: int) -> list[int]:
    """Admit ``count`` requests and return their slots."""
    return [manager.admit_request() for _ in range(count)]


def snapshot(manager: KVCacheManager) -> dict[str, object]:
    """All that a manager knows, copied: equal before and after a refusal."""
    return {
        "tokens": manager.tokens.tolist(),
        "slots": state(manager._slots),
        "tables": [
            (table.blocks.tolist(), table.held.tolist(), state(table.allocator))
            for table in manager.tables
        ],
    }


def ids(*blocks: int) -> Ids:
    return np.array(blocks, dtype=np.int64)


def chain(pool: BlockPool, *hashes: int, parent: int = 0) -> Ids:
    """Blocks of a registered chain, held once."""
    blocks = pool.acquire(len(hashes))
    pool.register(blocks, hashes, (parent, *hashes[:-1]))
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
