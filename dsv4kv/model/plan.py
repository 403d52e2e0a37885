"""A cache on paper: every layer's storage, who shares tables, and how many blocks and slots.

The plan is what a cache is built from, so what it predicts is what must be allocated.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dsv4kv.errors import ConfigError
from dsv4kv.model.budget import PoolPlan, plan_pools
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.rope import Precision
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import (
    REPORT_BLOCK_TOKENS,
    CacheFormats,
    LayerCacheSchema,
    StateFormat,
    build_schema,
)
from dsv4kv.model.sharing import Sharing, TableGroup, table_groups


@dataclass(frozen=True)
class CachePlan:
    """Geometry and sizes of a whole cache.

    Attributes:
        config: The model.
        schemas: Storage of every layer held, in model order.
        groups: Layers that share block tables.
        num_blocks: Blocks of every pool, by table group.
        num_slots: Requests that can run at once.
        max_context_tokens: Longest request, in tokens; drafts in flight included.
        draft_tokens: Most speculative tokens that may be rolled back.
        hadamard: Rotate indexer keys before quantising.
        rope: What position × frequency is formed in.
    """

    config: DSV4Config
    schemas: tuple[LayerCacheSchema, ...]
    groups: tuple[TableGroup, ...]
    num_blocks: dict[str, int]
    num_slots: int
    max_context_tokens: int
    draft_tokens: int
    hadamard: bool
    rope: Precision

    @property
    def pools(self) -> list[PoolPlan]:
        """Every pool with its predicted bytes."""
        return plan_pools(
            self.schemas, self.groups, self.num_blocks, self.num_slots, self.max_context_tokens
        )

    @property
    def total_bytes(self) -> int:
        """Predicted bytes of the whole cache."""
        return sum(pool.total_bytes for pool in self.pools)

    def group_of(self, layer_idx: int) -> TableGroup | None:
        """The table group of a layer; None where it owns no compressed KV."""
        return next((group for group in self.groups if layer_idx in group.layers), None)


def plan_cache(
    config: DSV4Config,
    *,
    max_context_tokens: int,
    num_slots: int,
    num_blocks: int | None = None,
    layers: Collection[int] | None = None,
    stage: int = 0,
    stages: int = 1,
    draft_layers: bool = False,
    formats: CacheFormats | None = None,
    block_tokens: int = REPORT_BLOCK_TOKENS,
    sharing: Sharing = "model",
    state: StateFormat = "ring",
    draft_tokens: int = 0,
    hadamard: bool = True,
    rope: Precision = "float32",
) -> CachePlan:
    """Plan a cache from its sizes and from what ``build_schedule`` and ``build_schema`` take.

    ``num_blocks`` is the number of blocks of every pool; None takes enough for every slot at
    full context.

    Raises:
        ConfigError: Sizes that are not positive, or anything the layers do not allow.
    """
    sizes = {"context": max_context_tokens, "slots": num_slots}
    if num_blocks is not None:
        sizes["blocks"] = num_blocks
    for what, size in sizes.items():
        if size <= 0:
            raise ConfigError(f"{what} is {size}: a cache needs at least 1.")
    schedule = build_schedule(
        config, layers=layers, stage=stage, stages=stages, draft_layers=draft_layers
    )
    schemas = tuple(
        build_schema(
            config,
            spec,
            formats=formats,
            block_tokens=block_tokens,
            state=state,
            draft_tokens=draft_tokens,
        )
        for spec in schedule
    )
    groups = table_groups(schemas, sharing)
    blocks = {
        group.name: num_blocks or max(1, group.blocks_for(max_context_tokens)) * num_slots
        for group in groups
    }
    return CachePlan(
        config,
        schemas,
        groups,
        blocks,
        num_slots,
        max_context_tokens,
        draft_tokens,
        hadamard,
        rope,
    )
