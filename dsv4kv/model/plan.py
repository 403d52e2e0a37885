"""A cache on paper: what every layer stores, who shares tables, how many blocks and slots.

A cache is built from its plan, so allocated bytes must equal predicted ones. A layer has pages per
block, window and state per request slot. With 128-token blocks every CSA layer of a request holds
the same number of blocks, and so does every HCA layer, so one block table can serve a whole model.
The other choices exist to be compared.

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
from math import lcm, prod
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType, DSV4Config, LayerSpec, Precision, build_schedule
from dsv4kv.model.formats import EntryFormat, PageLayout, entry_format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REPORT_BLOCK_TOKENS = 128
"""lcm(4, 128): the smallest block that holds whole entries of every V4 layer."""
_SMALLEST_PAGE_TOKENS = 64  # of any engine: vLLM's on Hopper for V4.1, SGLang's for V3.2

StateFormat = Literal["ring", "online"]
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class CacheFormats:
    """Entry formats of a cache by place."""

    main: EntryFormat
    window: EntryFormat
    indexer: EntryFormat


def choose_formats(
    config: DSV4Config,
    main: str | None = None,
    window: str | None = None,
    indexer: str | None = None,
) -> CacheFormats:
    """Look up formats by name; None takes the model's own. Raises ``ConfigError``."""
    main, window = main or config.formats.main, window or config.formats.window
    return CacheFormats(
        entry_format("main", main, flat=config.architecture == "flat"),
        entry_format("window", window),
        entry_format("indexer", indexer or config.formats.indexer),
    )


@dataclass(frozen=True)
class LayerCacheSchema:
    """Storage of one layer."""

    layer: LayerSpec  # the layer
    block_tokens: int  # tokens of context one block covers
    main: PageLayout | None  # page of compressed KV in one block; None where the layer owns none
    # page of indexer keys under the same block id; None without indexer
    indexer: PageLayout | None
    window: PageLayout | None  # ring of window entries of one request slot; None without window
    # fp32 compressor state of one slot. Ring: (kv | score, row, channel); online: (max |
    # denominator | weighted sum, channel); empty without state
    state_shape: tuple[int, ...]
    indexer_state_shape: tuple[int, ...]  # the same for the indexer's own compressor

    @property
    def entries_per_block(self) -> int:
        """Compressed entries one block holds in this layer; 0 without compressed KV."""
        return self.main.entries if self.main else 0

    @property
    def pages(self) -> list[PageLayout]:
        """Pages under one block id: of compressed KV, of indexer keys."""
        return [page for page in (self.main, self.indexer) if page]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this layer, page padding included."""
        return sum(page.page_bytes for page in self.pages)

    @property
    def window_bytes(self) -> int:
        """Bytes of one request slot's window ring, page padding included."""
        return self.window.page_bytes if self.window else 0

    @property
    def state_bytes(self) -> int:
        """Bytes of one request slot's compressor states."""
        shapes = (self.state_shape, self.indexer_state_shape)
        return sum(prod(shape) * _FLOAT_BYTES for shape in shapes if shape)

    @property
    def slot_bytes(self) -> int:
        """Fixed bytes of one request slot in this layer."""
        return self.window_bytes + self.state_bytes

    @property
    def bytes_per_token(self) -> Fraction:
        """Exact marginal bytes of one token of context, without page padding."""
        entry = sum(page.format.entry_bytes for page in self.pages)
        return Fraction(entry, self.layer.ratio or 1)

    def entries_after(self, tokens: int) -> int:
        """Complete entries of a request that has ``tokens`` tokens."""
        return tokens // self.layer.ratio if self.main else 0


def build_schema(
    config: DSV4Config,
    spec: LayerSpec,
    *,
    formats: CacheFormats | None = None,
    block_tokens: int = REPORT_BLOCK_TOKENS,
    state: StateFormat = "ring",
    draft_tokens: int = 0,
) -> LayerCacheSchema:
    """Lay out one layer's cache; ``formats`` None takes the model's own.

    block_tokens: a multiple of 128 (64 where no layer pools 128).
    draft_tokens: most speculative tokens that may be rolled back; window ring and state ring grow
    by as many rows so that rolling back loses nothing. Raises ``ConfigError``.
    """
    step = lcm(_SMALLEST_PAGE_TOKENS, *filter(None, config.compress_ratios))
    if block_tokens <= 0 or block_tokens % step:
        raise ConfigError(f"block_tokens is {block_tokens}: it must be a multiple of {step}.")
    if state == "online" and draft_tokens:
        raise ConfigError("online state cannot roll back drafts: use the ring state.")
    formats = formats or choose_formats(config)
    entries = block_tokens // spec.ratio if spec.owns_kv else 0
    # V3.2's IndexCache: a layer that selects nothing has no keys; V4.1's owners hold all of them.
    indexed = entries > 0 and (
        spec.attn is AttentionType.CSA or (spec.attn is AttentionType.DSA and spec.selects)
    )
    window = PageLayout(formats.window, config.window_tokens + draft_tokens)
    pooled_keys = indexed and not spec.is_latent
    return LayerCacheSchema(
        layer=spec,
        block_tokens=block_tokens,
        main=PageLayout(formats.main, entries) if entries else None,
        indexer=PageLayout(formats.indexer, entries) if indexed else None,
        window=None if spec.attn is AttentionType.DSA else window,
        state_shape=_state_shape(spec, config.head_dim, state, draft_tokens),
        indexer_state_shape=_state_shape(spec, config.index_dim, state, draft_tokens)
        if pooled_keys
        else (),
    )


def _state_shape(
    spec: LayerSpec, dim: int, state: StateFormat, draft_tokens: int
) -> tuple[int, ...]:
    """V4's CSA overlaps: two groups of ``ratio`` rows, each with a previous and a current half."""
    if not spec.owns_kv or spec.ratio == 1:  # one token an entry: nothing is pooled
        return ()
    if spec.overlaps:
        return (2, 2 * spec.ratio + draft_tokens, 2 * dim)
    online = state == "online" and spec.attn is AttentionType.HCA
    return (3, dim) if online else (2, spec.ratio + draft_tokens, dim)


Sharing = Literal["model", "type", "layer"]
Tokens = TypeVar("Tokens", int, "NDArray[np.int64]")
"""A count, or one for each request."""


@dataclass(frozen=True)
class TableGroup:
    """Layers whose block tables grow in step."""

    name: str  # for tables and messages: ``model``, ``csa``, ``hca``, …
    ratio: int  # smallest compress ratio of the layers: it decides how many blocks are needed
    entries_per_block: int  # entries of that ratio one block holds
    layers: tuple[int, ...]  # layer indices, in model order
    lanes: int  # tables in the group: 1 shared by all its layers, or one per layer

    def blocks_for(self, tokens: Tokens) -> Tokens:
        """Blocks of one lane that hold every complete entry of ``tokens`` tokens."""
        return -(-(tokens // self.ratio) // self.entries_per_block)

    def lane_of(self, layer_idx: int) -> int:
        """The lane whose table the layer reads."""
        return self.layers.index(layer_idx) if self.lanes > 1 else 0


def table_groups(schemas: Sequence[LayerCacheSchema], sharing: Sharing) -> tuple[TableGroup, ...]:
    """Group the layers that own compressed KV; empty when none does."""
    members: dict[int, list[LayerCacheSchema]] = {}  # by ratio, or all together
    for schema in schemas:
        if schema.main:
            members.setdefault(0 if sharing == "model" else schema.layer.ratio, []).append(schema)
    kinds = [alike[0].layer.attn.value for alike in members.values()]
    groups = []
    for (ratio, alike), kind in zip(members.items(), kinds, strict=True):
        name = kind if kinds.count(kind) == 1 else f"{kind}-{ratio}"
        finest = min(alike, key=lambda schema: schema.layer.ratio)
        groups.append(
            TableGroup(
                name if ratio else "model",
                finest.layer.ratio,
                finest.entries_per_block,
                tuple(schema.layer.layer_idx for schema in alike),
                len(alike) if sharing == "layer" else 1,
            )
        )
    return tuple(groups)


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
    groups: tuple[TableGroup, ...]  # layers that share block tables
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
        build_schema, config, formats=formats, block_tokens=block_tokens, state=state
    )
    schemas = tuple(lay_out(spec, draft_tokens=draft_tokens) for spec in schedule)
    groups = table_groups(schemas, sharing)
    blocks = {
        group.name: num_blocks or max(1, group.blocks_for(max_context_tokens)) * num_slots
        for group in groups
    }
    lengths = max_context_tokens, draft_tokens
    return CachePlan(config, schemas, groups, blocks, num_slots, *lengths, hadamard, rope)


Part = Literal["main", "indexer", "window", "state", "indexer_state"]
"""The part of a layer that a family holds, as its schema names it."""


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
