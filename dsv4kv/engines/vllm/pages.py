"""What vLLM stores for every layer: pages by block, for buckets of layers that grow in step.

Compressed KV and indexer keys need blocks for the whole context. Window entries and compressor
states are kept by blocks too, of which only those under the sliding window stay.
Source: vLLM 0.26.0 and 0.33.0, ``vllm/models/deepseek_v4`` and ``DeepseekV4SWACache``.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4kv.engines.contract import Deployment, Layer
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import EntryFormat

DEFAULT_BLOCK_TOKENS = 256
WINDOW_BLOCK_TOKENS = 64
_STATE_BLOCK_TOKENS = {"csa": 4, "hca": 8}
_RATIO = {"csa": 4, "hca": 128}
_STATE_BYTES = 4  # vLLM asserts float32
_PACKED_ALIGN, _PLAIN_ALIGN = 576, 512  # fp8_ds_mla pages; contiguous bf16 and fp8 pages


@dataclass(frozen=True)
class Page:
    """One layer's part of a block.

    Attributes:
        pool: ``main``, ``indexer``, ``window`` or ``state``.
        layer: The layer.
        page_bytes: Bytes, padding included.
        used_bytes: Bytes of entries.
    """

    pool: str
    layer: Layer
    page_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Group:
    """Layers under one block table; before they are split, a bucket of layers.

    Attributes:
        rows: Every layer's pages, in model order.
        block_tokens: Tokens one block covers.
        window_tokens: Tokens behind the current one that stay readable; None keeps all.
    """

    rows: tuple[tuple[Page, ...], ...]
    block_tokens: int
    window_tokens: int | None = None

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
        if self.window_tokens is None:
            return -(-tokens // self.block_tokens)
        live = min(self.window_tokens - 1 + in_flight_tokens, tokens)
        return -(-live // self.block_tokens) + 1

    def on_this_rank(self) -> "Group":
        """The same group with the pages of held layers only."""
        rows = tuple(row for row in self.rows if row[0].layer.held)
        return Group(rows, self.block_tokens, self.window_tokens)


def build_buckets(deployment: Deployment, layers: Iterable[Layer]) -> list[Group]:
    """The full-context bucket first, then windows, CSA states and HCA states, where there are any.

    Raises:
        ConfigError: A format, state or block size that vLLM does not have, or no compressed layer.
    """
    _check(deployment)
    layers = list(layers)
    block = deployment.block_tokens or DEFAULT_BLOCK_TOKENS
    compressed = [layer for layer in layers if layer.kind in _RATIO]
    if not compressed:
        raise ConfigError("vLLM's V4 rules need at least one CSA or HCA layer.")
    window = deployment.model.window_tokens
    buckets = [
        Group(tuple(_context_pages(deployment, block, layer) for layer in compressed), block),
        Group(
            tuple((_window_page(deployment, layer),) for layer in layers),
            WINDOW_BLOCK_TOKENS,
            window,
        ),
    ]
    for kind, span in (("csa", 8), ("hca", 128)):  # CSA overlaps: its state spans two groups of 4
        rows = tuple(_state_pages(deployment, layer) for layer in compressed if layer.kind == kind)
        if rows:
            buckets.append(Group(rows, _STATE_BLOCK_TOKENS[kind], span))
    return buckets


def _check(deployment: Deployment) -> None:
    formats, block = deployment.formats, deployment.block_tokens
    if formats.main != formats.window:
        raise ConfigError(
            f"vLLM keeps window and compressed KV in one format, not {formats.window.name} and "
            f"{formats.main.name}: choose fp8_ds_mla, bf16 or fp8 for both."
        )
    if formats.indexer.name == "bf16":
        raise ConfigError("vLLM keeps indexer keys in fp8 or mxfp4, not bf16: choose one of them.")
    if deployment.state_bytes != _STATE_BYTES or deployment.online_state:
        raise ConfigError(
            "vLLM keeps the compressor state of every token of a window in float32: "
            "choose the state fp32."
        )
    if block is not None and (block <= 0 or block % 128):
        raise ConfigError(f"block_tokens is {block}: vLLM needs a multiple of 128.")


def _context_pages(deployment: Deployment, block_tokens: int, layer: Layer) -> tuple[Page, ...]:
    entries = block_tokens // _RATIO[layer.kind]
    pages = [_page("main", layer, deployment, deployment.formats.main, entries)]
    if layer.kind == "csa":
        pages.append(_page("indexer", layer, deployment, deployment.formats.indexer, entries))
    return tuple(pages)


def _window_page(deployment: Deployment, layer: Layer) -> Page:
    return _page("window", layer, deployment, deployment.formats.window, WINDOW_BLOCK_TOKENS)


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
    align = _PACKED_ALIGN if deployment.formats.main.name == "fp8_ds_mla" else _PLAIN_ALIGN
    return Page(pool, layer, -(-used_bytes // align) * align, used_bytes)
