"""What vLLM stores for every layer: pages by block, for buckets of layers that grow in step.

Compressed KV and indexer keys need blocks for the whole context. Window entries and compressor
states are kept by blocks too, of which only those under the sliding window stay. V4.1 keeps a ring
of state in one block of every request, V3.2 nothing but entries and keys.
Buckets are split into groups that draw their blocks from one pool, so that a block costs the same
in each.
Source: vLLM 0.20 to 0.33, ``vllm/models/deepseek_v4``, ``DeepseekV4SWACache``,
``kv_cache_utils.py``, ``kv_cache_planning.py``; of 0.33.0 ``vllm/models/deepseek_v41`` and
``deepseek_v2.py``.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm

from dsv4kv.engines.contract import DRAFT, Deployment, Layer, layers_of
from dsv4kv.engines.vllm import Grouping, Packing, Release
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import EntryFormat

DEFAULT_BLOCK_TOKENS = 256
WINDOW_BLOCK_TOKENS = 64
_STATE_BLOCK_TOKENS = {"csa": 4, "hca": 8}
_RATIO = {"csa": 4, "hca": 128}
_STATE_BYTES = 4  # vLLM asserts float32
_PACKED_ALIGN, _PLAIN_ALIGN = 576, 512  # fp8_ds_mla pages; V4.1's records and plain rows
_V41_WINDOW_BLOCK, _V41_RING_ROWS = 32, 8
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
    """One layer's part of a block.

    Attributes:
        pool: ``main``, ``indexer``, ``window`` or ``state``.
        page_bytes: Bytes, padding included.
        used_bytes: Bytes of entries.
    """

    pool: str
    layer: Layer
    page_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class LayerGroup:
    """Layers under one block table; before they are split, a bucket of layers.

    Attributes:
        rows: Every layer's pages, in model order.
        block_tokens: Tokens one block covers.
        window_tokens: Tokens behind the current one that stay readable; None keeps all.
        ring: One block of a request is written round and round.
    """

    rows: tuple[tuple[Page, ...], ...]
    block_tokens: int
    window_tokens: int | None = None
    ring: bool = False

    @property
    def whole(self) -> bool:
        """Whether it keeps the whole context."""
        return self.window_tokens is None and not self.ring

    @property
    def pages(self) -> tuple[Page, ...]:
        """Pages of one block, over all layers."""
        return tuple(page for row in self.rows for page in row)

    @property
    def page_bytes(self) -> int:
        """Bytes of one block's pages."""
        return sum(page.page_bytes for page in self.pages)

    @property
    def sizes(self) -> Counter[int]:
        """How many pages of a block have which size."""
        return Counter(page.page_bytes for page in self.pages)

    @property
    def repeats(self) -> int:
        """Pages of the commonest size: how often the pattern of page sizes repeats."""
        return max(self.sizes.values(), default=0)

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks of a request of so many tokens, with a reserve for those in flight.

        Outside the window a block is given back once its tokens are settled, so those in flight
        keep theirs; the window may start inside a block, which costs one more.
        """
        if self.ring:
            return 1
        if self.whole:
            return -(-tokens // self.block_tokens)
        live = min((self.window_tokens or 0) - 1 + in_flight_tokens, tokens)
        return -(-live // self.block_tokens) + 1

    def on_this_rank(self) -> "LayerGroup":
        """The same group with the pages of held layers only."""
        rows = tuple(row for row in self.rows if row[0].layer.held)
        return replace(self, rows=rows)


def build_buckets(deployment: Deployment, layers: Sequence[Layer]) -> list[LayerGroup]:
    """The full-context bucket first, then windows and states, where there are any.

    Raises:
        ConfigError: A format, state or block size that vLLM does not have, or no compressed layer.
    """
    return _BUCKETS[deployment.model.kind](deployment, layers)


def stride_bytes(deployment: Deployment) -> int:
    """What the bytes of a block are a multiple of: V4.1's records are rows of the whole cache."""
    formats = deployment.formats
    if formats.window.name != _WHOLE:
        return 1
    return lcm(formats.window.entry_bytes, formats.main.entry_bytes)


def _v4_buckets(deployment: Deployment, layers: Sequence[Layer]) -> list[LayerGroup]:
    _check(deployment)
    block = deployment.block_tokens or DEFAULT_BLOCK_TOKENS
    compressed = [layer for layer in layers if layer.kind in _RATIO]
    if not compressed:
        raise ConfigError("vLLM's V4 rules need at least one CSA or HCA layer.")
    window = deployment.model.window_tokens
    buckets = [
        LayerGroup(tuple(_context_pages(deployment, block, layer) for layer in compressed), block),
        LayerGroup(
            tuple((_window_page(deployment, layer),) for layer in layers),
            WINDOW_BLOCK_TOKENS,
            window,
        ),
    ]
    for kind, span in (("csa", 8), ("hca", 128)):  # CSA overlaps: its state spans two groups of 4
        rows = tuple(_state_pages(deployment, layer) for layer in compressed if layer.kind == kind)
        if rows:
            buckets.append(LayerGroup(rows, _STATE_BLOCK_TOKENS[kind], span))
    return buckets


def _v41_buckets(deployment: Deployment, layers: Sequence[Layer]) -> list[LayerGroup]:
    """Owners' entries and keys; windows of every layer; rings of the owners of ratio 2."""
    block = deployment.block_tokens or _v41_block(deployment)
    _check_v41(deployment, layers, block)
    owners = [layer for layer in layers if layer.owns]
    window, rows = deployment.model.window_tokens, _ring_rows(deployment.draft_tokens)
    buckets = [
        LayerGroup(tuple(_owned_pages(deployment, block, layer) for layer in owners), block),
        LayerGroup(
            tuple((_window_page(deployment, layer, _V41_WINDOW_BLOCK),) for layer in layers),
            _V41_WINDOW_BLOCK,
            window,
        ),
    ]
    state = rows * 2 * deployment.model.head_dim * _STATE_BYTES
    rings = tuple((Page("state", layer, state, state),) for layer in owners if layer.ratio == 2)
    return [*buckets, LayerGroup(rings, rows, ring=True)] if rings else buckets


def _v41_block(deployment: Deployment) -> int:
    """Blocks that attention and indexer read: 64 tokens on Hopper, else 128."""
    hopper = deployment.arch == "sm_90"
    if deployment.arch is None:
        hopper = deployment.formats.window.name == "fp8_ds_mla"
    return 64 if hopper else 128


def _ring_rows(draft_tokens: int) -> int:
    """Rows of a step, drafts included, and the one before: a power of two, 8 at least."""
    return max(_V41_RING_ROWS, 1 << (draft_tokens + 1).bit_length())


def _check_v41(deployment: Deployment, layers: Sequence[Layer], block: int) -> None:
    formats, smallest = deployment.formats, _v41_block(deployment)
    if (formats.main.name, formats.window.name) not in _PAIRS:
        pairs = "; ".join(f"{main} and {window}" for main, window in sorted(_PAIRS))
        raise ConfigError(
            f"vLLM keeps V4.1 not in {formats.main.name} with windows in {formats.window.name}: "
            f"choose {pairs}."
        )
    _check_keys_and_state(deployment)
    if block <= 0 or block % smallest:
        raise ConfigError(
            f"block_tokens is {block}: vLLM needs a multiple of {smallest} for V4.1."
        )
    held = {layer.index for layer in layers if layer.held}
    for layer in layers:
        if layer.held and layer.ratio and layer.owner not in held:
            raise ConfigError(
                f"layer {layer.index} reads the KV of layer {layer.owner}, which is in another "
                "pipeline stage: vLLM does not serve that; choose stages that begin at layer "
                f"{', '.join(str(owner) for owner in deployment.model.kv_owners or ())}."
            )


def _owned_pages(deployment: Deployment, block_tokens: int, layer: Layer) -> tuple[Page, ...]:
    entries, formats = block_tokens // layer.ratio, deployment.formats
    return (
        _page("main", layer, deployment, formats.main, entries),
        _page("indexer", layer, deployment, formats.indexer, entries),
    )


def _flat_buckets(deployment: Deployment, layers: Sequence[Layer]) -> list[LayerGroup]:
    """Every layer's entries, and keys where it has an indexer: a draft layer has one."""
    formats, block = deployment.formats, deployment.block_tokens or _FLAT_BLOCK_TOKENS
    _check_keys_and_state(deployment)
    if block <= 0 or block % _FLAT_BLOCK_TOKENS:
        raise ConfigError(
            f"block_tokens is {block}: vLLM needs a multiple of {_FLAT_BLOCK_TOKENS} for V3.2."
        )

    def pages(layer: Layer) -> tuple[Page, ...]:
        sizes = {"main": formats.main.entry_bytes * block}
        if layer.selects or layer.kind == DRAFT:
            sizes["indexer"] = formats.indexer.entry_bytes * block
        return tuple(Page(pool, layer, size, size) for pool, size in sizes.items())

    return [LayerGroup(tuple(pages(layer) for layer in layers), block)]


_FLAT_BLOCK_TOKENS = 64
_BUCKETS: dict[str, Callable[[Deployment, Sequence[Layer]], list[LayerGroup]]] = {
    "v4": _v4_buckets,
    "v41": _v41_buckets,
    "flat": _flat_buckets,
}


def _check(deployment: Deployment) -> None:
    formats, block = deployment.formats, deployment.block_tokens
    if formats.main != formats.window:
        raise ConfigError(
            f"vLLM keeps window and compressed KV in one format, not {formats.window.name} and "
            f"{formats.main.name}: choose fp8_ds_mla, bf16 or fp8 for both."
        )
    _check_keys_and_state(deployment)
    if block is not None and (block <= 0 or block % 128):
        raise ConfigError(f"block_tokens is {block}: vLLM needs a multiple of 128.")


def _check_keys_and_state(deployment: Deployment) -> None:
    if deployment.formats.indexer.name == "bf16":
        raise ConfigError("vLLM keeps indexer keys in fp8 or mxfp4, not bf16: choose one of them.")
    if deployment.state_bytes != _STATE_BYTES or deployment.online_state:
        raise ConfigError(
            "vLLM keeps the compressor state of every token of a window in float32: "
            "choose the state fp32."
        )


def _context_pages(deployment: Deployment, block_tokens: int, layer: Layer) -> tuple[Page, ...]:
    entries = block_tokens // _RATIO[layer.kind]
    pages = [_page("main", layer, deployment, deployment.formats.main, entries)]
    if layer.kind == "csa":
        pages.append(_page("indexer", layer, deployment, deployment.formats.indexer, entries))
    return tuple(pages)


def _window_page(deployment: Deployment, layer: Layer, entries: int = WINDOW_BLOCK_TOKENS) -> Page:
    return _page("window", layer, deployment, deployment.formats.window, entries)


def _page(
    pool: str, layer: Layer, deployment: Deployment, entry: EntryFormat, entries: int
) -> Page:
    return _aligned(pool, layer, deployment, entries * entry.entry_bytes)


def _state_pages(deployment: Deployment, layer: Layer) -> tuple[Page, ...]:
    """Kv and score of every token: two halves of 512 channels for CSA, one for HCA."""
    model, tokens = deployment.model, _STATE_BLOCK_TOKENS[layer.kind]
    dims = (model.head_dim, model.index_dim) if layer.kind == "csa" else (model.head_dim,)
    channels = 4 if layer.kind == "csa" else 2
    return tuple(
        _aligned("state", layer, deployment, tokens * channels * dim * _STATE_BYTES)
        for dim in dims
    )


def _aligned(pool: str, layer: Layer, deployment: Deployment, used_bytes: int) -> Page:
    align = _PACKED_ALIGN if deployment.formats.window.name == "fp8_ds_mla" else _PLAIN_ALIGN
    return Page(pool, layer, -(-used_bytes // align) * align, used_bytes)


# ---- groups and their blocks --------------------------------------------------------------------


def split_buckets(
    buckets: Sequence[LayerGroup], grouping: Grouping, *, pad: bool
) -> list[LayerGroup]:
    """The groups of a model: the full-context bucket whole, the others in nearly equal parts.

    Args:
        buckets: Full context first.
        grouping: How the parts' size is found: ``tuples`` up to 0.28, ``patterns`` from 0.29.
        pad: Window and state pages take the size of the next larger full-context page, so that
            they can share its place (up to 0.26).

    Raises:
        ConfigError: A window or state page larger than every full-context page, when padding.
    """
    full, *others = buckets
    if grouping == "tuples":
        divisor = closest_divisor([bucket.repeats for bucket in buckets], full.repeats)
        tuples = [_layer_tuples(_padded(bucket, full) if pad else bucket) for bucket in others]
        counts = [-(-len(bucket.rows) // divisor) for bucket in tuples]
    else:
        tuples, (_, *counts) = others, _part_counts(buckets)
    parts = [
        replace(bucket, rows=bucket.rows[i::count])
        for bucket, count in zip(tuples, counts, strict=True)
        for i in range(count)
    ]
    return [full, *parts]


def closest_divisor(counts: Sequence[int], lowest: int) -> int:
    """The d, from ``lowest`` up, that pads the counts to multiples of d with least padding.

    Of several, the largest.
    """
    return min(
        range(max(lowest, 1), max(*counts, lowest) + 1),
        key=lambda d: (sum(-count % d for count in counts), -d),
    )


def block_bytes(groups: Sequence[LayerGroup], packing: Packing, full: LayerGroup) -> int:
    """Bytes of one block over all held layers, whichever group it belongs to.

    Args:
        groups: With this rank's pages, full context first.
        packing: The rule.
        full: The full-context group of the whole model, whose page sizes ``tuples`` falls back to.
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
    """Buckets of equally many pages of each size repeat a pattern; mixed ones stay whole."""
    balanced = [bucket for bucket in buckets if len(set(bucket.sizes.values())) == 1]
    lowest = max((bucket.repeats for bucket in balanced if len(bucket.sizes) > 1), default=0)
    if not lowest:
        return _state_parts(buckets)
    divisor = closest_divisor([bucket.repeats for bucket in balanced], lowest)
    return [-(-bucket.repeats // divisor) if bucket in balanced else 1 for bucket in buckets]


def _state_parts(buckets: Sequence[LayerGroup]) -> list[int]:
    """Without a pattern, windows and states fill what a block must hold anyway."""
    anchor = max(
        bucket.page_bytes if bucket.whole else bucket.pages[0].page_bytes for bucket in buckets
    )
    return [
        1 if bucket.whole else -(-len(bucket.pages) // (anchor // bucket.pages[0].page_bytes))
        for bucket in buckets
    ]


def _padded(bucket: LayerGroup, full: LayerGroup) -> LayerGroup:
    rows = tuple(tuple(_pad(page, full) for page in row) for row in bucket.rows)
    return replace(bucket, rows=rows)


def _pad(page: Page, full: LayerGroup) -> Page:
    larger = [size for size in full.sizes if size >= page.page_bytes]
    if not larger:
        raise ConfigError(
            f"this vLLM keeps a {page.pool} page of {page.page_bytes:,} B in the place of a page "
            f"of compressed KV, of which the largest has {max(full.sizes):,} B: "
            "it needs a CSA layer, and blocks of 256 tokens or more."
        )
    return replace(page, page_bytes=min(larger))


@dataclass(frozen=True)
class BlockLayout:
    """The blocks of one rank.

    Attributes:
        groups: Of the whole model.
        held: The same groups with this rank's layers only.
    """

    groups: tuple[LayerGroup, ...]
    held: tuple[LayerGroup, ...]
    unit_bytes: int

    @property
    def weighed(self) -> list[LayerGroup]:
        """What vLLM weighs a request by: a group without a layer here as in the whole model."""
        pairs = zip(self.held, self.groups, strict=True)
        return [held if held.rows else group for held, group in pairs]

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks that a request really takes, over all groups."""
        return sum(group.blocks(tokens, in_flight_tokens) for group in self.groups)


@lru_cache(maxsize=256)
def lay_out(release: Release, deployment: Deployment) -> BlockLayout:
    """Groups and bytes of a block; raises ``ConfigError`` for what vLLM does not serve."""
    layers = layers_of(deployment, f"vllm:{release.newest}", release.kinds)
    buckets = build_buckets(deployment, layers)
    groups = split_buckets(buckets, release.grouping, pad=release.weighted)
    held = [group.on_this_rank() for group in groups]
    unit = block_bytes(held, release.packing, groups[0])
    if not unit:
        raise ConfigError("this rank holds no layer with a cache: give it at least one layer.")
    stride = stride_bytes(deployment)
    return BlockLayout(tuple(groups), tuple(held), -(-unit // stride) * stride)
