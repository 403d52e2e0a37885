"""The dsv4kv cache itself as an engine: what ``plan_cache`` plans and ``bench`` allocates.

Every request of a context has its blocks, its slot and its row of the block table, so the cost of
N requests is N times the cost of one, and nothing is reserved for tokens in flight.
"""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from dsv4kv.engines.contract import Capacity, Deployment, Engine, PoolCost
from dsv4kv.engines.dsv4kv import FAMILY
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import (
    REPORT_BLOCK_TOKENS,
    TABLE_ENTRY_BYTES,
    CachePlan,
    LayerCacheSchema,
    Sharing,
    TableGroup,
    plan_cache,
)


class OwnEngine(Engine):
    """The dsv4kv cache."""

    family = FAMILY
    own = True
    name = "dsv4kv"
    seen_in_logs = True

    def __init__(self, sharing: Sharing = "model") -> None:
        self.sharing: Sharing = sharing

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        one, kinds = self.plan(deployment, 1), dict[str, list[LayerCacheSchema]]()
        for schema in one.schemas:
            kinds.setdefault(schema.layer.kind, []).append(schema)
        costs = list[PoolCost]()
        for kind, schemas in kinds.items():
            for pool in ("main", "indexer"):
                pages: list[PageLayout] = [page for s in schemas if (page := getattr(s, pool))]
                used = sum(page.entries * page.format.entry_bytes for page in pages)
                lost, tokens = (
                    sum(page.page_bytes for page in pages) - used,
                    one.schemas[0].block_tokens,
                )
                if used:
                    useful, padding = Fraction(used, tokens), Fraction(lost, tokens)
                    costs.append(PoolCost(pool, kind, len(pages), 0, 0, useful, padding))
            for pool in ("window", "state"):
                sizes = [size for s in schemas if (size := getattr(s, f"{pool}_bytes"))]
                if sizes:
                    costs.append(PoolCost(pool, kind, len(sizes), fixed_bytes=sum(sizes)))
        tables = sum(pool.total_bytes for pool in one.pools if pool.name == "tables")
        if tables:
            costs.append(PoolCost("tables", "all", 1, fixed_bytes=tables))
        return tuple(costs)

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        # neither context nor load decides what a layer stores: searches ask for thousands of both
        key = replace(deployment, max_context_tokens=1, concurrency=None)
        groups, slot_bytes = _lay_out(self.sharing, key)
        width = deployment.max_context_tokens
        row = sum(group.lanes * group.blocks_for(width) for group, _ in groups)
        blocks = sum(max(1, group.blocks_for(tokens)) * size for group, size in groups)
        return blocks + slot_bytes + row * TABLE_ENTRY_BYTES

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        one = self.plan(deployment, 1)
        requests = max(0, available_bytes) // one.total_bytes
        blocks = max((one.num_blocks[group.name] for group in one.groups), default=1)
        line = (
            f"cache     {requests * blocks:,} blocks of {one.schemas[0].block_tokens} tokens, "
            f"{requests:,} slots, requests up to {one.max_context_tokens:,} tokens"
        )
        return Capacity(
            cache_bytes=requests * one.total_bytes,
            units=requests * blocks,
            unit_bytes=Fraction(one.total_bytes, blocks),
            units_per_request=Fraction(blocks),
            printed_tokens=requests * deployment.max_context_tokens,
            concurrency=Fraction(requests),
            log_lines=(line,),
        )

    def plan(self, deployment: Deployment, requests: int) -> CachePlan:
        """The cache for some requests of full context, as ``bench`` would build it."""
        drafts, model = deployment.draft_layers, deployment.model
        of_drafts = int(model.architecture == "flat")  # whatever the model's file says
        ratios = model.compress_ratios[: model.num_layers] + (of_drafts,) * drafts
        model = model.model_copy(update={"compress_ratios": ratios})
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


@lru_cache(maxsize=64)
def _lay_out(sharing: Sharing, deployment: Deployment) -> tuple[list[tuple[TableGroup, int]], int]:
    """Table groups, each with the bytes of a block, and the bytes of a slot."""
    plan = OwnEngine(sharing).plan(deployment, 1)
    of_layer = {schema.layer.layer_idx: schema.block_bytes for schema in plan.schemas}
    groups = [(group, sum(map(of_layer.__getitem__, group.layers))) for group in plan.groups]
    return groups, sum(schema.slot_bytes for schema in plan.schemas)
