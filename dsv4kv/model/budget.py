"""What a cache needs: blocks per table group, bytes per token and per request, bytes per pool."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schedule import LayerSpec
from dsv4kv.model.schema import REPORT_BLOCK_TOKENS, LayerCacheSchema, build_schema
from dsv4kv.model.sharing import Sharing, TableGroup, table_groups

TABLE_ENTRY_BYTES = 4


def compute_block_budget(
    config: DSV4Config,
    schedule: Sequence[LayerSpec],
    max_context_tokens: int,
    max_concurrent_requests: int,
    *,
    block_tokens: int = REPORT_BLOCK_TOKENS,
    sharing: Sharing = "model",
) -> dict[str, int]:
    """Blocks that every layer's pool needs, by table group, so that no request ever waits.

    Raises:
        ConfigError: A context or concurrency that is not positive.
    """
    if max_context_tokens <= 0 or max_concurrent_requests <= 0:
        raise ConfigError("context and concurrency must be at least 1.")
    schemas = [build_schema(config, spec, block_tokens=block_tokens) for spec in schedule]
    return {
        group.name: group.blocks_for(max_context_tokens) * max_concurrent_requests
        for group in table_groups(schemas, sharing)
    }


def bytes_per_token(schemas: Sequence[LayerCacheSchema]) -> Fraction:
    """Exact marginal bytes of one token of context over all layers, page padding left out."""
    return sum((schema.bytes_per_token for schema in schemas), Fraction(0))


@dataclass(frozen=True)
class RequestBytes:
    """What one request holds, in bytes, page padding left out."""

    compressed: int
    indexer: int
    window: int
    state: int

    @property
    def cached(self) -> int:
        """Everything but the compressor state: the figure that papers quote."""
        return self.compressed + self.indexer + self.window


def bytes_per_request(schemas: Sequence[LayerCacheSchema], tokens: int) -> RequestBytes:
    """Bytes a request of ``tokens`` tokens holds over all layers."""
    compressed = indexer = window = 0
    for schema in schemas:
        entries = schema.entries_after(tokens)
        compressed += entries * schema.main.format.entry_bytes if schema.main else 0
        indexer += entries * schema.indexer.format.entry_bytes if schema.indexer else 0
        if schema.window:
            window += min(tokens, schema.window.entries) * schema.window.format.entry_bytes
    return RequestBytes(compressed, indexer, window, sum(s.state_bytes for s in schemas))


@dataclass(frozen=True)
class PoolPlan:
    """One kind of pool over all layers of one attention type and one size.

    Attributes:
        name: ``main``, ``indexer``, ``window``, ``state`` or ``tables``.
        layer_type: Attention type, or ``all``.
        layers: Layers that have such a pool.
        units: Blocks (or slots) of each.
        unit_bytes: Bytes of one block's page (or one slot) in one layer.
    """

    name: str
    layer_type: str
    layers: int
    units: int
    unit_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes over all layers."""
        return self.layers * self.units * self.unit_bytes


def plan_pools(
    schemas: Sequence[LayerCacheSchema],
    groups: Sequence[TableGroup],
    num_blocks: dict[str, int],
    num_slots: int,
    max_context_tokens: int,
) -> list[PoolPlan]:
    """Bytes of every pool of a cache before it is built; ``num_blocks`` by table group."""
    blocks_of = {layer: num_blocks[group.name] for group in groups for layer in group.layers}
    layers: Counter[tuple[str, str, int, int]] = Counter()
    for schema in schemas:
        blocks = blocks_of.get(schema.layer.layer_idx, 0)
        sizes = {
            "main": (blocks, schema.main.page_bytes if schema.main else 0),
            "indexer": (blocks, schema.indexer.page_bytes if schema.indexer else 0),
            "window": (num_slots, schema.window_bytes),
            "state": (num_slots, schema.state_bytes),
        }
        for name, (units, unit_bytes) in sizes.items():
            if unit_bytes:
                layers[name, schema.layer.attn.value, units, unit_bytes] += 1
    plans = [PoolPlan(name, attn, n, *size) for (name, attn, *size), n in layers.items()]
    width = {group: group.blocks_for(max_context_tokens) for group in groups}
    row_bytes = sum(group.lanes * width[group] * TABLE_ENTRY_BYTES for group in groups)
    tables = [PoolPlan("tables", "all", 1, num_slots, row_bytes)] if row_bytes else []
    return sorted(plans, key=lambda plan: _ORDER.index(plan.name)) + tables


_ORDER = ("main", "indexer", "window", "state")
