"""What the model is: its layers, entry formats, page layouts and the bytes that follow."""

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat, PageLayout, entry_format
from dsv4kv.model.plan import (
    CachePlan,
    PoolPlan,
    RequestBytes,
    bytes_per_request,
    bytes_per_token,
    compute_block_budget,
    plan_cache,
    plan_pools,
)
from dsv4kv.model.presets import load_model, preset_names
from dsv4kv.model.schedule import AttentionType, LayerSpec, build_schedule
from dsv4kv.model.schema import (
    CacheFormats,
    LayerCacheSchema,
    Sharing,
    TableGroup,
    build_schema,
    choose_formats,
    table_groups,
)

__all__ = [
    "AttentionType",
    "CacheFormats",
    "CachePlan",
    "DSV4Config",
    "EntryFormat",
    "LayerCacheSchema",
    "LayerSpec",
    "PageLayout",
    "PoolPlan",
    "RequestBytes",
    "Sharing",
    "TableGroup",
    "build_schedule",
    "build_schema",
    "bytes_per_request",
    "bytes_per_token",
    "choose_formats",
    "compute_block_budget",
    "entry_format",
    "load_model",
    "plan_cache",
    "plan_pools",
    "preset_names",
    "table_groups",
]
