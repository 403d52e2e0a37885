"""Small caches, and everything they know, for tests."""

from typing import Any

from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import CachePlan, plan_cache
from dsv4kv.model.presets import load_model
from tests.cache.blocks import state

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
            (
                table.blocks.tolist(),
                table.held.tolist(),
                table.returns.tolist(),
                state(table.allocator),
            )
            for table in manager.tables
        ],
    }
