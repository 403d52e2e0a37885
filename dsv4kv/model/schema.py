"""What one layer stores, and which layers share a block table.

Pages per block; window and state per request slot.

Who shares a block table. With 128-token blocks every CSA layer of a request holds the same number
of blocks, and so does every HCA layer, so one table can serve a whole model. The other choices
exist to be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm, prod
from typing import TYPE_CHECKING, Literal, TypeVar

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat, PageLayout, entry_format
from dsv4kv.model.schedule import AttentionType, LayerSpec

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
