"""A cache on paper: every layer's storage, who shares tables, and how many blocks and slots.

A cache is built from its plan, so allocated bytes must equal predicted ones.

What a request must find of a prefix to go on after ``n`` tokens (arXiv:2606.19348, 3.5.2) are
objects of a few families, each with a rule of its own: compressed entries and indexer keys of
every block, the window of sliding attention as it was there, and the compressors' states as far as
a group reaches across that point. Layers of one kind have pieces of one size, kept as one object.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from math import prod
from typing import Literal, NamedTuple, get_args

from dsv4kv.errors import ConfigError
from dsv4kv.model import schema as sc
from dsv4kv.model.config import DSV4Config, Precision
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import LayerCacheSchema

TABLE_ENTRY_BYTES = 4


def bytes_per_token(schemas: Sequence[LayerCacheSchema]) -> Fraction:
    """Exact marginal bytes of one token of context over all layers, without page padding."""
    return sum((schema.bytes_per_token for schema in schemas), Fraction(0))


def cached_bytes(schemas: Sequence[LayerCacheSchema], tokens: int) -> int:
    """Entries of a request of ``tokens`` tokens over all layers, without page padding and states.

    It is the figure that papers quote.
    """
    total = 0
    for schema in schemas:
        entries = schema.entries_after(tokens)
        total += sum(entries * page.format.entry_bytes for page in schema.pages)
        if schema.window:
            total += min(tokens, schema.window.entries) * schema.window.format.entry_bytes
    return total


@dataclass(frozen=True)
class PoolPlan:
    """One kind of pool over all layers of one attention type and one size."""

    name: str  # ``main``, ``indexer``, ``window``, ``state`` or ``tables``
    layer_type: str  # attention type, or ``all``
    layers: int  # layers that have such a pool
    units: int  # blocks (or slots) of each
    unit_bytes: int  # bytes of one block's page (or one slot) in one layer

    @property
    def total_bytes(self) -> int:
        """Bytes over all layers."""
        return self.layers * self.units * self.unit_bytes


CHECKPOINT_TOKENS = 128
"""Groups of every compressor end at its multiples: a checkpoint is at one of them."""


def at_whole_block(schema: LayerCacheSchema) -> LayerCacheSchema:
    """A layer as a checkpoint holds it: its window, and the state that the next group pools.

    Only where groups overlap (CSA of V4) does the next one pool tokens before the block's end. Of
    an HCA layer, whose groups are 128 tokens that stand alone, and of V4.1's, of two, nothing is
    pending there (arXiv:2606.19348, 3.5.2).
    """
    if schema.layer.overlaps:
        return schema
    return replace(schema, state_shape=(), indexer_state_shape=())


class HeldBytes(NamedTuple):
    """Bytes over all layers; slots and checkpoints have windows and states."""

    block: int
    slot: int
    checkpoint: int
    windows: int  # of a slot
    window_entries: int  # of one token


def held_bytes(schemas: Sequence[LayerCacheSchema]) -> HeldBytes:
    """What layers hold of blocks, requests and checkpoints."""
    return HeldBytes(
        sum(schema.block_bytes for schema in schemas),
        sum(schema.slot_bytes for schema in schemas),
        sum(at_whole_block(schema).slot_bytes for schema in schemas),
        sum(schema.window_bytes for schema in schemas),
        sum(schema.window.format.entry_bytes for schema in schemas if schema.window),
    )


@dataclass(frozen=True)
class CachePlan:
    """Geometry and sizes of a whole cache."""

    config: DSV4Config  # the model
    schemas: tuple[LayerCacheSchema, ...]  # storage of every layer held, in model order
    groups: tuple[sc.TableGroup, ...]  # layers that share block tables
    num_blocks: dict[str, int]  # blocks of every pool, by table group
    num_slots: int  # requests that can run at once
    max_context_tokens: int  # longest request, in tokens; drafts in flight included
    draft_tokens: int  # most speculative tokens that may be rolled back
    hadamard: bool  # rotate indexer keys before quantising
    rope: Precision  # what position × frequency is formed in

    @property
    def pools(self) -> list[PoolPlan]:
        """Every pool with its predicted bytes."""
        layers: Counter[tuple[str, str, int, int]] = Counter()
        for schema in self.schemas:
            group = self.group_of(schema.layer.layer_idx)
            blocks = self.num_blocks[group.name] if group else 0
            sizes = {"window": (self.num_slots, schema.window_bytes)}
            sizes |= {"state": (self.num_slots, schema.state_bytes)}
            for name, page in (("main", schema.main), ("indexer", schema.indexer)):
                sizes[name] = blocks, page.page_bytes if page else 0
            for name, (units, unit_bytes) in sizes.items():
                if unit_bytes:
                    layers[name, schema.layer.attn.value, units, unit_bytes] += 1
        plans = [PoolPlan(name, attn, n, *size) for (name, attn, *size), n in layers.items()]
        plans.sort(key=lambda plan: ("main", "indexer", "window", "state").index(plan.name))
        row = sum(group.lanes * group.blocks_for(self.max_context_tokens) for group in self.groups)
        if row:
            plans.append(PoolPlan("tables", "all", 1, self.num_slots, row * TABLE_ENTRY_BYTES))
        return plans

    @property
    def total_bytes(self) -> int:
        """Predicted bytes of the whole cache."""
        return sum(pool.total_bytes for pool in self.pools)

    def group_of(self, layer_idx: int) -> sc.TableGroup | None:
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
    formats: sc.CacheFormats | None = None,
    block_tokens: int = sc.REPORT_BLOCK_TOKENS,
    sharing: sc.Sharing = "model",
    state: sc.StateFormat = "ring",
    draft_tokens: int = 0,
    hadamard: bool = True,
    rope: Precision = "float32",
) -> CachePlan:
    """Plan a cache from its sizes and from what ``build_schedule`` and ``build_schema`` take.

    ``num_blocks``: of every pool; None takes enough for every slot at full context. Raises
    ``ConfigError`` for sizes that are not positive, or anything the layers do not allow.
    """
    sizes = {"context": max_context_tokens, "slots": num_slots}
    for what, size in (sizes | {"blocks": num_blocks}).items():
        if size is not None and size <= 0:
            raise ConfigError(f"{what} is {size}: a cache needs at least 1.")
    schedule = build_schedule(
        config, layers=layers, stage=stage, stages=stages, draft_layers=draft_layers
    )
    lay_out = partial(
        sc.build_schema, config, formats=formats, block_tokens=block_tokens, state=state
    )
    schemas = tuple(lay_out(spec, draft_tokens=draft_tokens) for spec in schedule)
    groups = sc.table_groups(schemas, sharing)
    blocks = {
        group.name: num_blocks or max(1, group.blocks_for(max_context_tokens)) * num_slots
        for group in groups
    }
    lengths = max_context_tokens, draft_tokens
    return CachePlan(config, schemas, groups, blocks, num_slots, *lengths, hadamard, rope)


Part = Literal["main", "indexer", "window", "state", "indexer_state"]
"""The part of a layer that a family holds, as its schema names it."""

_FLOAT_BYTES = 4


class Kept(StrEnum):
    """Which objects of a family a request needs to resume."""

    PAGES = "pages"
    """One for every block of the prefix that holds an entry of it."""
    WINDOW = "window"
    """The last window before the resume point, as it is there."""
    OPEN = "open"
    """The group of tokens that is open at the resume point; none where a group ends there."""


@dataclass(frozen=True)
class Family:
    """Layers whose pieces are one object."""

    name: str  # ``csa``, ``csa_indexer``, ``hca``, ``window``, ``csa_state``, …
    part: Part  # what of its layers it holds
    kept: Kept  # which objects of it a prefix needs
    layers: tuple[int, ...]  # model indices of its layers, in model order: the pieces of an object
    ratio: int  # tokens of one entry, or of one group; 1 for windows
    tokens: int  # tokens that a page covers, or positions in a ring
    piece_bytes: int  # bytes of one layer, page padding included
    layout: PageLayout | None = None  # where entries are in a piece; None for a state
    state_shape: tuple[int, ...] = ()  # float32 state of one layer; empty where there are entries

    @property
    def object_shape(self) -> tuple[int, int]:
        """Of one object: layers, bytes of a piece."""
        return len(self.layers), self.piece_bytes

    @property
    def object_bytes(self) -> int:
        """Bytes of one object: all layers."""
        return len(self.layers) * self.piece_bytes

    def objects(self, tokens: int) -> int:
        """Objects that a request needs to resume after ``tokens`` tokens."""
        if self.kept is Kept.PAGES:
            return -(-(tokens // self.ratio) * self.ratio // self.tokens)
        return int(tokens > 0 if self.kept is Kept.WINDOW else tokens % self.ratio > 0)

    def useful_bytes(self, tokens: int) -> int:
        """Bytes of those objects without padding, and without entries that are not there yet."""
        if self.layout is None:
            return self.objects(tokens) * self.object_bytes
        entries = tokens // self.ratio
        if self.kept is Kept.WINDOW:
            entries = min(entries, self.tokens)
        return len(self.layers) * entries * self.layout.format.entry_bytes


def families_in(layers: Sequence[LayerCacheSchema]) -> tuple[Family, ...]:
    """Families of layers: pages first, then the window, then states.

    Their names are the attention's, with the ratio where one attention has several (V4.1):
    ``csa-2``, ``csa-1``. Draft layers' windows are among the others: without them a draft after
    the prefix would read another request's.
    """
    owners = [schema for schema in layers if schema.main]
    ratios = {(schema.layer.attn, schema.layer.ratio) for schema in owners}
    families: list[Family] = []
    for part in get_args(Part):
        attribute = f"{part}_shape" if part.endswith("state") else part
        kinds: dict[str, list[LayerCacheSchema]] = {}
        for schema in layers if part == "window" else owners:
            spec = schema.layer
            several = sum(attn is spec.attn for attn, _ in ratios) > 1
            kind = f"{spec.attn}-{spec.ratio}" if several else spec.attn.value
            name = {"main": kind, "window": "window"}.get(part, f"{kind}_{part}")
            if getattr(schema, attribute):
                kinds.setdefault(name, []).append(schema)
        families += [
            _family(name, part, getattr(schemas[0], attribute), schemas)
            for name, schemas in kinds.items()
        ]
    return tuple(families)


def _family(
    name: str, part: Part, held: PageLayout | tuple[int, ...], schemas: Sequence[LayerCacheSchema]
) -> Family:
    spec = schemas[0].layer
    layers = tuple(schema.layer.layer_idx for schema in schemas)
    if isinstance(held, PageLayout):
        kept, ratio, tokens = Kept.PAGES, spec.ratio, schemas[0].block_tokens
        if part == "window":
            kept, ratio, tokens = Kept.WINDOW, 1, held.entries
        return Family(name, part, kept, layers, ratio, tokens, held.page_bytes, layout=held)
    positions = held[1] if len(held) == 3 else 1  # a running softmax has no positions
    size = positions, prod(held) * _FLOAT_BYTES
    # overlapping groups also pool tokens before a resume point where one of them ends
    kept = Kept.WINDOW if spec.overlaps else Kept.OPEN
    return Family(name, part, kept, layers, spec.ratio, *size, state_shape=held)
