"""Who shares a block table.

With 128-token blocks every CSA layer of a request holds the same number of blocks, and so does
every HCA layer, so one table can serve a whole model. The other choices exist to be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsv4kv.model.schema import LayerCacheSchema

Sharing = Literal["model", "type", "layer"]


@dataclass(frozen=True)
class TableGroup:
    """Layers whose block tables grow in step.

    Attributes:
        name: For tables and messages: ``model``, ``csa``, ``hca``, ….
        ratio: Smallest compress ratio of the layers: it decides how many blocks are needed.
        entries_per_block: Entries of that ratio one block holds.
        layers: Layer indices, in model order.
        lanes: Tables in the group: 1 shared by all its layers, or one per layer.
    """

    name: str
    ratio: int
    entries_per_block: int
    layers: tuple[int, ...]
    lanes: int

    def blocks_for(self, tokens: int) -> int:
        """Blocks of one lane that hold every complete entry of ``tokens`` tokens."""
        return -(-(tokens // self.ratio) // self.entries_per_block)

    def lane_of(self, layer_idx: int) -> int:
        """The lane whose table the layer reads."""
        return self.layers.index(layer_idx) if self.lanes > 1 else 0


def table_groups(schemas: Sequence[LayerCacheSchema], sharing: Sharing) -> tuple[TableGroup, ...]:
    """Group the layers that own compressed KV; empty when none does."""
    owners = [schema for schema in schemas if schema.main]
    if not owners:
        return ()
    if sharing == "model":
        return (_group("model", owners, lanes=1),)
    by_ratio: dict[int, list[LayerCacheSchema]] = {}
    for schema in owners:
        by_ratio.setdefault(schema.layer.ratio, []).append(schema)
    return tuple(
        _group(
            _group_name(members[0], by_ratio), members, 1 if sharing == "type" else len(members)
        )
        for members in by_ratio.values()
    )


def _group(name: str, members: Sequence[LayerCacheSchema], lanes: int) -> TableGroup:
    finest = min(members, key=lambda schema: schema.layer.ratio)
    layers = tuple(schema.layer.layer_idx for schema in members)
    return TableGroup(name, finest.layer.ratio, finest.entries_per_block, layers, lanes)


def _group_name(schema: LayerCacheSchema, by_ratio: dict[int, list[LayerCacheSchema]]) -> str:
    kind = schema.layer.attn.value
    same_kind = sum(members[0].layer.attn == kind for members in by_ratio.values())
    return kind if same_kind == 1 else f"{kind}-{schema.layer.ratio}"
