"""Small caches, and everything they know, for tests."""

from copy import deepcopy
from typing import Any

import numpy as np

from dsv4kv.cache.allocators.contract import Allocator
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


def bookkeeping(allocator: str = "stack", **changes: Any) -> KVCacheManager:
    """The bookkeeping of a small cache, without its memory."""
    return KVCacheManager(small_plan(**changes), data=False, allocator=allocator)


def admit(manager: KVCacheManager, count: int) -> list[int]:
    """Admit ``count`` requests and return their slots."""
    return [manager.admit_request() for _ in range(count)]


def allocators(manager: KVCacheManager) -> list[Allocator]:
    """Allocators of the blocks of every table."""
    return [table.allocator for table in manager.tables]


def allocator_snapshot(allocator: Allocator) -> dict[str, object]:
    """Every attribute of an allocator and of its parts; arrays as nested lists."""
    unchanging = ("_numbers", "_first")
    return {name: _copied(v) for name, v in vars(allocator).items() if name not in unchanging}


def _copied(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [_copied(each) for each in value]
    if type(value).__module__.startswith("dsv4kv.") and hasattr(value, "__dict__"):
        return allocator_snapshot(value)
    return deepcopy(value) if isinstance(value, (dict, set)) else value


def snapshot(manager: KVCacheManager) -> dict[str, object]:
    """All that a manager knows, copied: equal before and after a refusal."""
    return {
        "tokens": manager.tokens.tolist(),
        "slots": allocator_snapshot(manager._slots),
        "tables": [
            (
                table.blocks.tolist(),
                table.held.tolist(),
                table.returns.tolist(),
                allocator_snapshot(table.allocator),
            )
            for table in manager.tables
        ],
    }
