"""The dsv4kv cache itself as an engine: what ``plan_cache`` plans and ``bench`` allocates.

Every request of a context has its blocks, its slot and its row of the block table, so the cost of
N requests is N times the cost of one, and nothing is reserved for tokens in flight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from dsv4kv.engines.contract import DRAFT, Capacity, Deployment, Engine, PoolCost
from dsv4kv.engines.dsv4kv import FAMILY
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import TABLE_ENTRY_BYTES, CachePlan, plan_cache
from dsv4kv.model.schema import REPORT_BLOCK_TOKENS, LayerCacheSchema, Sharing, TableGroup


class OwnEngine(Engine):
    """The dsv4kv cache.

    Attributes:
        sharing: Which layers share a block table.
    """

    family = FAMILY
    own = True
    name = "dsv4kv"
    seen_in_logs = True

    def __init__(self, sharing: Sharing = "model") -> None:
        self.sharing: Sharing = sharing

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        """Every pool's fixed and marginal bytes; the table row is fixed by the longest request."""
        one = self.plan(deployment, 1)
        costs = [
            cost
            for kind, schemas in _by_kind(one.schemas).items()
            for cost in _costs_of(kind, schemas)
        ]
        tables = sum(pool.total_bytes for pool in one.pools if pool.name == "tables")
        if tables:
            costs.append(PoolCost("tables", "all", 1, fixed_bytes=tables))
        return tuple(costs)

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        """Bytes of one request of so many tokens: blocks, slot, table row."""
        # neither context nor load decides what a layer stores: searches ask for thousands of both
        key = replace(deployment, max_context_tokens=1, concurrency=None)
        held = _lay_out(self.sharing, key)
        width = deployment.max_context_tokens
        row = sum(group.lanes * group.blocks_for(width) for group in held.groups)
        blocks = sum(
            max(1, group.blocks_for(tokens)) * block_bytes
            for group, block_bytes in zip(held.groups, held.block_bytes, strict=True)
        )
        return blocks + held.slot_bytes + row * TABLE_ENTRY_BYTES

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        """Requests of full context that fit; raises ``ConfigError``."""
        one = self.plan(deployment, 1)
        requests = max(0, available_bytes) // one.total_bytes
        blocks = max((one.num_blocks[group.name] for group in one.groups), default=1)
        tokens = requests * deployment.max_context_tokens
        return Capacity(
            cache_bytes=requests * one.total_bytes,
            units=requests * blocks,
            unit_bytes=Fraction(one.total_bytes, blocks),
            units_per_request=Fraction(blocks),
            printed_tokens=tokens,
            concurrency=Fraction(requests),
            log_lines=(_cache_line(one, requests, blocks),),
        )

    def plan(self, deployment: Deployment, requests: int) -> CachePlan:
        """The cache for so many requests of full context, as ``bench`` would build it.

        Raises:
            ConfigError: What the cache does not have: a bf16 state, blocks of no multiple of 128.
        """
        drafts = deployment.draft_layers
        model = _with_drafts(deployment.model, drafts)
        layers = deployment.layers
        if layers is not None:
            layers = (*layers, *range(model.num_layers, model.num_layers + drafts))
        if deployment.state_bytes != 4:
            raise ConfigError(
                "the dsv4kv cache keeps its compressor state in float32: choose the state fp32 "
                "or online."
            )
        return plan_cache(
            model,
            max_context_tokens=deployment.max_context_tokens,
            num_slots=requests,
            layers=layers,
            draft_layers=drafts > 0,
            formats=deployment.formats,
            block_tokens=deployment.block_tokens or REPORT_BLOCK_TOKENS,
            sharing=self.sharing,
            state="online" if deployment.online_state else "ring",
            draft_tokens=deployment.draft_tokens,
        )


@dataclass(frozen=True)
class _Layers:
    """What is the same for every context: bytes of a block by table group, bytes of a slot."""

    groups: tuple[TableGroup, ...]
    block_bytes: tuple[int, ...]
    slot_bytes: int


@lru_cache(maxsize=64)
def _lay_out(sharing: Sharing, deployment: Deployment) -> _Layers:
    plan = OwnEngine(sharing).plan(deployment, 1)
    return _Layers(
        plan.groups,
        tuple(
            sum(s.block_bytes for s in plan.schemas if s.layer.layer_idx in group.layers)
            for group in plan.groups
        ),
        sum(schema.slot_bytes for schema in plan.schemas),
    )


def _cache_line(one: CachePlan, requests: int, blocks: int) -> str:
    return (
        f"cache     {requests * blocks:,} blocks of {one.schemas[0].block_tokens} tokens, "
        f"{requests:,} slots, requests up to {one.max_context_tokens:,} tokens"
    )


def _with_drafts(model: DSV4Config, count: int) -> DSV4Config:
    """The model with so many draft layers, whatever its file says."""
    ratio = 1 if model.architecture == "flat" else 0
    ratios = model.compress_ratios[: model.num_layers] + (ratio,) * count
    return model.model_copy(update={"compress_ratios": ratios})


def _by_kind(schemas: Sequence[LayerCacheSchema]) -> dict[str, list[LayerCacheSchema]]:
    kinds: dict[str, list[LayerCacheSchema]] = {}
    for schema in schemas:
        kind = DRAFT if schema.layer.is_draft else schema.layer.attn.value
        kinds.setdefault(kind, []).append(schema)
    return kinds


def _costs_of(kind: str, schemas: Sequence[LayerCacheSchema]) -> list[PoolCost]:
    costs = []
    for pool in ("main", "indexer"):
        pages = [(schema, page) for schema in schemas if (page := getattr(schema, pool))]
        useful = sum((_per_token(schema, page)[0] for schema, page in pages), Fraction(0))
        padding = sum((_per_token(schema, page)[1] for schema, page in pages), Fraction(0))
        if useful:
            costs.append(
                PoolCost(pool, kind, len(pages), marginal_bytes=useful, padding_bytes=padding)
            )
    for pool, sizes in (
        ("window", [schema.window_bytes for schema in schemas if schema.window_bytes]),
        ("state", [schema.state_bytes for schema in schemas if schema.state_bytes]),
    ):
        if sizes:
            costs.append(PoolCost(pool, kind, len(sizes), fixed_bytes=sum(sizes)))
    return costs


def _per_token(schema: LayerCacheSchema, page: PageLayout) -> tuple[Fraction, Fraction]:
    """Useful and padding bytes of one token of context in one layer's pages."""
    useful = page.entries * page.format.entry_bytes
    return (
        Fraction(useful, schema.block_tokens),
        Fraction(page.page_bytes - useful, schema.block_tokens),
    )
