"""What vLLM stores for every layer: pages by block, for buckets of layers that grow in step.

Compressed KV and indexer keys need blocks for the whole context. Window entries and compressor
states are kept by blocks too; only blocks under the sliding window stay. V4.1 keeps a ring of
state in one block of every request, V3.2 nothing but entries and keys.
Buckets are split into groups that draw their blocks from one pool, so that a block costs the same
in each.
Source: vLLM 0.20 to 0.33, ``vllm/models/deepseek_v4``, ``DeepseekV4SWACache``,
``kv_cache_utils.py``, ``kv_cache_planning.py``; of 0.33.0 ``vllm/models/deepseek_v41`` and
``deepseek_v2.py``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import lcm

from dsv4kv.engines.contract import Deployment, held_layers, layers_of
from dsv4kv.engines.vllm import Grouping, Packing, Release
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import LayerSpec

_STATE_BYTES = 4  # vLLM asserts float32
_PACKED_ALIGN, _PLAIN_ALIGN = 576, 512  # fp8_ds_mla pages; V4.1's records and plain rows
_WINDOW_BLOCK = {"v4": 64, "v41": 32}
_WHOLE = "fp8_group32_interleaved"
_PAIRS = {
    ("fp8_ds_mla", "fp8_ds_mla"),
    ("bf16", "bf16"),
    ("fp8", "fp8"),
    (_WHOLE, _WHOLE),
    ("fp4_interleaved", _WHOLE),
}
"""Formats of compressed KV and window that V4.1 is kept in."""


@dataclass(frozen=True)
class Page:
    """One layer's part of a block: bytes with padding, and bytes of entries."""

    pool: str
    layer: LayerSpec
    page_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class LayerGroup:
    """Layers under one block table; before they are split, a bucket of layers."""

    rows: tuple[tuple[Page, ...], ...]  # every layer's pages, in model order
    block_tokens: int
    window_tokens: int | None = None  # that stay readable behind the current one
    ring: bool = False  # one block of a request is written round and round

    @property
    def whole(self) -> bool:  # keeps the whole context
        return self.window_tokens is None and not self.ring

    @cached_property
    def pages(self) -> tuple[Page, ...]:  # of one block, over all layers
        return tuple(page for row in self.rows for page in row)

    @cached_property
    def page_bytes(self) -> int:  # of one block
        return sum(page.page_bytes for page in self.pages)

    @cached_property
    def sizes(self) -> Counter[int]:  # pages of a block by size
        return Counter(page.page_bytes for page in self.pages)

    @property
    def repeats(self) -> int:
        """Pages of the commonest size: how often the pattern of page sizes repeats."""
        return max(self.sizes.values(), default=0)

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks of a request, with a reserve for the tokens in flight.

        Outside the window a block is given back once its tokens are settled, so those in flight
        keep theirs; the window may start inside a block, which costs one more.
        """
        if self.ring:
            return 1
        if self.whole:
            return -(-tokens // self.block_tokens)
        live = min((self.window_tokens or 0) - 1 + in_flight_tokens, tokens)
        return -(-live // self.block_tokens) + 1


def build_buckets(deployment: Deployment, layers: Sequence[LayerSpec]) -> list[LayerGroup]:
    """Full context first, then windows and states; ``ConfigError`` for what vLLM does not have."""
    model, formats, kind = deployment.model, deployment.formats, deployment.model.kind
    hopper = deployment.arch == "sm_90"
    if deployment.arch is None:
        hopper = formats.window.name == "fp8_ds_mla"
    low = 64 if hopper else 128  # blocks of V4.1 that attention and indexer read
    usual, smallest = {"v4": (256, 128), "v41": (low, low), "flat": (64, 64)}[kind]
    block = usual if deployment.block_tokens is None else deployment.block_tokens
    _check(deployment, kind, block, smallest)
    flat = kind == "flat"
    align = _PACKED_ALIGN if formats.window.name == "fp8_ds_mla" else _PLAIN_ALIGN
    align = 1 if flat else align

    def page(pool: str, layer: LayerSpec, used_bytes: int) -> Page:
        return Page(pool, layer, -(-used_bytes // align) * align, used_bytes)

    def context(layer: LayerSpec) -> tuple[Page, ...]:
        entries = block // max(layer.ratio, 1)
        main = page("main", layer, entries * formats.main.entry_bytes)
        keyed = layer.selects if flat else layer.kind != "hca"
        if not keyed:
            return (main,)
        return main, page("indexer", layer, entries * formats.indexer.entry_bytes)

    owners = [layer for layer in layers if flat or layer.owns_kv]
    if not owners:
        raise ConfigError("vLLM's V4 rules need at least one CSA or HCA layer.")
    full = LayerGroup(tuple(map(context, owners)), block)
    if flat:
        return [full]
    size = _WINDOW_BLOCK[kind]
    window = size * formats.window.entry_bytes
    rows = tuple((page("window", layer, window),) for layer in layers)
    buckets = [full, LayerGroup(rows, size, model.window_tokens)]
    if kind == "v41":
        # rows of a step, drafts included, and the one before: a power of two, 8 at least
        held = max(8, 1 << (deployment.draft_tokens + 1).bit_length())
        state = held * 2 * model.head_dim * _STATE_BYTES
        rings = tuple((Page("state", e, state, state),) for e in owners if e.ratio == 2)
        return [*buckets, LayerGroup(rings, held, ring=True)] if rings else buckets
    # kv and score of every token; CSA overlaps: two halves, and a state that spans two groups of 4
    for owner, tokens, span, channels in (("csa", 4, 8, 4), ("hca", 8, 128, 2)):
        dims = (model.head_dim, model.index_dim) if owner == "csa" else (model.head_dim,)
        used = [tokens * channels * dim * _STATE_BYTES for dim in dims]
        states = tuple(
            tuple(page("state", layer, each) for each in used)
            for layer in owners
            if layer.kind == owner
        )
        if states:
            buckets.append(LayerGroup(states, tokens, span))
    return buckets


def _check(deployment: Deployment, kind: str, block: int, smallest: int) -> None:
    formats = deployment.formats
    main, window = formats.main.name, formats.window.name
    if kind == "v4" and formats.main != formats.window:
        raise ConfigError(
            f"vLLM keeps window and compressed KV in one format, not {window} and {main}: choose "
            "fp8_ds_mla, bf16 or fp8 for both."
        )
    if kind == "v41" and (main, window) not in _PAIRS:
        pairs = "; ".join(" and ".join(pair) for pair in sorted(_PAIRS))
        raise ConfigError(
            f"vLLM keeps V4.1 not in {main} with windows in {window}: choose {pairs}."
        )
    if formats.indexer.name == "bf16":
        raise ConfigError("vLLM keeps indexer keys in fp8 or mxfp4, not bf16: choose one of them.")
    if deployment.state_bytes != _STATE_BYTES or deployment.online_state:
        raise ConfigError(
            "vLLM keeps the compressor state of every token of a window in float32: choose the "
            "state fp32."
        )
    if block <= 0 or block % smallest:
        of = {"v4": "", "v41": " for V4.1", "flat": " for V3.2"}[kind]
        raise ConfigError(f"block_tokens is {block}: vLLM needs a multiple of {smallest}{of}.")


# ---- groups and their blocks --------------------------------------------------------------------


def split_buckets(
    buckets: Sequence[LayerGroup], grouping: Grouping, *, pad: bool
) -> list[LayerGroup]:
    """The groups of a model: the full-context bucket whole, the others in nearly equal parts.

    Up to 0.26 (``pad``) window and state pages take the size of the next larger full-context page,
    so that they can share its place; ``ConfigError`` where none is larger.
    """
    full, *others = buckets
    if grouping == "tuples":
        divisor = _closest_divisor([bucket.repeats for bucket in buckets], full.repeats)
        others = [_layer_tuples(_padded(bucket, full) if pad else bucket) for bucket in others]
        counts = [-(-len(bucket.rows) // divisor) for bucket in others]
    else:
        _, *counts = _part_counts(buckets)
    parts = [
        replace(bucket, rows=bucket.rows[i::count])
        for bucket, count in zip(others, counts, strict=True)
        for i in range(count)
    ]
    return [full, *parts]


def _closest_divisor(counts: Sequence[int], lowest: int) -> int:
    """The largest d from ``lowest`` up that pads counts to multiples of d with least padding."""
    return min(
        range(max(lowest, 1), max(*counts, lowest) + 1),
        key=lambda d: (sum(-count % d for count in counts), -d),
    )


def block_bytes(groups: Sequence[LayerGroup], packing: Packing, full: LayerGroup) -> int:
    """Bytes of one block over all held layers, whichever group it belongs to.

    ``groups`` have this rank's pages, full context first; ``full`` is the whole model's, to whose
    page sizes ``tuples`` falls back.
    """
    if packing == "widest":
        return max(group.page_bytes for group in groups)
    if packing == "tuples":
        sizes = groups[0].sizes or full.sizes
        return sum(sizes) * max(group.repeats for group in groups)
    slots: Counter[int] = Counter()
    for group in groups:
        slots |= group.sizes
    return sum(size * count for size, count in slots.items())


def _layer_tuples(bucket: LayerGroup) -> LayerGroup:
    """The same pages in rows of one page of each size; padded alike, a layer's two become two."""
    by_size: dict[int, list[Page]] = {}
    for page in bucket.pages:
        by_size.setdefault(page.page_bytes, []).append(page)
    return replace(bucket, rows=tuple(zip(*by_size.values(), strict=True)))


def _part_counts(buckets: Sequence[LayerGroup]) -> list[int]:
    """Buckets of equally many pages of each size repeat a pattern; mixed ones stay whole.

    Without a pattern, windows and states fill what a block must hold anyway.
    """
    balanced = [bucket for bucket in buckets if len(set(bucket.sizes.values())) == 1]
    lowest = max((bucket.repeats for bucket in balanced if len(bucket.sizes) > 1), default=0)
    if lowest:
        divisor = _closest_divisor([bucket.repeats for bucket in balanced], lowest)
        return [-(-bucket.repeats // divisor) if bucket in balanced else 1 for bucket in buckets]
    first = [bucket.pages[0].page_bytes for bucket in buckets]
    held = [b.page_bytes if b.whole else one for b, one in zip(buckets, first, strict=True)]
    return [
        1 if bucket.whole else -(-len(bucket.pages) // (max(held) // one))
        for bucket, one in zip(buckets, first, strict=True)
    ]


def _padded(bucket: LayerGroup, full: LayerGroup) -> LayerGroup:
    def pad(page: Page) -> Page:
        larger = [size for size in full.sizes if size >= page.page_bytes]
        if not larger:
            raise ConfigError(
                f"this vLLM keeps a {page.pool} page of {page.page_bytes:,} B in the place of a "
                f"page of compressed KV, whose largest has {max(full.sizes):,} B: it needs "
                "a CSA layer, and blocks of 256 tokens or more."
            )
        return replace(page, page_bytes=min(larger))

    return replace(bucket, rows=tuple(tuple(map(pad, row)) for row in bucket.rows))


@dataclass(frozen=True)
class BlockLayout:
    """The blocks of one rank."""

    groups: tuple[LayerGroup, ...]  # of the whole model
    held: tuple[LayerGroup, ...]  # the same groups with this rank's layers only
    unit_bytes: int

    @property
    def weighed(self) -> list[LayerGroup]:
        """Groups that weigh a request: one without a layer here counts as in the whole model."""
        pairs = zip(self.held, self.groups, strict=True)
        return [held if held.rows else group for held, group in pairs]

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks that a request really takes, over all groups."""
        return sum(group.blocks(tokens, in_flight_tokens) for group in self.groups)


@lru_cache(maxsize=256)
def lay_out(release: Release, deployment: Deployment) -> BlockLayout:
    """Groups and bytes of a block; raises ``ConfigError`` for what vLLM does not serve."""
    served = deployment, f"vllm:{release.newest}", release.kinds
    layers, of_rank = layers_of(*served), {layer.layer_idx for layer in held_layers(*served)}
    buckets = build_buckets(deployment, layers)
    for layer in layers:
        if layer.layer_idx in of_rank and layer.ratio and layer.kv_owner not in of_rank:
            raise ConfigError(
                f"layer {layer.layer_idx} reads the KV of layer {layer.kv_owner}, which is in "
                "another pipeline stage: starts of vLLM with such stages are known, and are not "
                "sized. `dsv4kv explain` the start's log, or choose stages that begin at layer "
                f"{', '.join(str(owner) for owner in deployment.model.kv_owners or ())} "
                "(VLLM_PP_LAYER_PARTITION)."
            )
    groups = split_buckets(buckets, release.grouping, pad=release.weighted)
    held = [
        replace(group, rows=tuple(row for row in group.rows if row[0].layer.layer_idx in of_rank))
        for group in groups
    ]
    unit = block_bytes(held, release.packing, groups[0])
    if not unit:
        raise ConfigError("this rank holds no layer with a cache: give it at least one layer.")
    formats, stride = deployment.formats, 1
    if formats.window.name == _WHOLE:  # V4.1's records are rows of the whole cache
        stride = lcm(formats.window.entry_bytes, formats.main.entry_bytes)
    return BlockLayout(tuple(groups), tuple(held), -(-unit // stride) * stride)
