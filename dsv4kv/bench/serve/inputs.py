"""What a model would hand its cache: deterministic data for every request and position.

A token's data is a function of its request, its position and whether it is a rejected draft, so
what an entry must be can be worked out from scratch at any time, without asking the cache.

Long contexts are placed, not served: compressed entries are drawn at random and encoded once, and
whole pages of them are copied to the blocks that a request holds; which page goes where follows
from request, layer and block, so every entry's value is known. Windows and compressor states are
as served: the end of the prompt is written by the cache's own operations.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import LayerCache
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import PageLayout
from dsv4kv.ops.storage import Compressor, PageStore, rope_rows
from dsv4kv.traces.request import Request

_DISTINCT_TOKENS = 4099  # a prime: requests that start at other offsets rarely meet in phase
_STRIDE = 1009  # offset between consecutive requests, in tokens
_REJECTED_OFFSET = 2053  # offset of a rejected draft from the token that takes its place
_DISTINCT_QUERIES = 61  # of all heads: some MB


@dataclass(frozen=True)
class Queries:
    """What the attention of a decode step asks, the same in all layers."""

    attention: Tensor  # bf16[T, H, D]
    indexer: Tensor  # bf16[T, Hi, Di], before RoPE
    weights: Tensor  # of the indexer's heads, float32[T, Hi]
    # cosines, then sines of each token's position by ratio, float32[T, R]
    turns: Mapping[int, Tensor]
    sinks: Tensor  # float32[H]

    def of_tokens(self, change: Callable[[Tensor], Tensor]) -> "Queries":
        """The same with everything changed that is by token."""
        turns = {ratio: change(rows) for ratio, rows in self.turns.items()}
        each = change(self.attention), change(self.indexer), change(self.weights)
        return Queries(*each, turns, self.sinks)


@dataclass(frozen=True)
class StepInputs:
    """What a model hands its cache in one step."""

    window: Tensor  # window values of the step's tokens, bf16[T, D]
    # their rows for compressors, float32[T, C] by number of channels
    kv: Mapping[int, Tensor]
    score: Mapping[int, Tensor]
    # values that become entries one by one, bf16[T, d] by d; of d = D it is the window's
    projected: Mapping[int, Tensor]
    # entries that layers read which select some, by ratio: int32[B, K], −1 for none; nothing in a
    # prompt chunk
    topk: Mapping[int, Tensor]
    queries: Queries | None = None  # what attention asks; None where entries are gathered

    def entries(self, dims: int) -> Tensor | None:
        """Values that become entries of ``dims`` channels, bf16[T, d]; None where none do."""
        return self.window if dims == self.window.shape[1] else self.projected.get(dims)

    def pooled(self, compressor: Compressor | None) -> dict[str, Tensor]:
        """Kv and score for a compressor; empty where its entries are of one value."""
        channels = compressor.channels if compressor else 0
        return (
            {"kv": self.kv[channels], "score": self.score[channels]} if channels in self.kv else {}
        )

    def of_tokens(self, change: Callable[[Tensor], Tensor]) -> "StepInputs":
        """The same with everything changed that is by token."""
        kv, score, projected = (
            {size: change(rows) for size, rows in each.items()}
            for each in (self.kv, self.score, self.projected)
        )
        queries = self.queries.of_tokens(change) if self.queries else None
        return StepInputs(change(self.window), kv, score, projected, self.topk, queries)

    def tensors(self) -> Iterator[Tensor]:
        """What changes from step to step, in a fixed order."""
        yield self.window
        for each in (self.topk, self.projected, self.kv, self.score):
            yield from each.values()
        if self.queries is not None:
            yield from (self.queries.attention, self.queries.indexer, self.queries.weights)
            yield from self.queries.turns.values()


class InputBank:
    """Standard normal window values, kv and score rows, and queries of every token.

    ``every`` holds distinct + chunk rows, ``asks`` some queries; None where none are drawn.
    """

    def __init__(
        self,
        config: DSV4Config,
        compressors: list[Compressor],
        max_chunk: int,
        seed: int,
        projected_dims: Collection[int] = (),
        ratios: Collection[int] | None = None,
    ) -> None:
        """Draw the data; a chunk of ``max_chunk`` tokens is always one contiguous slice.

        projected_dims: Channels of entries that are of one value each.
        ratios: Of the layers whose indexers ask; None draws no queries.
        """
        generator = torch.Generator().manual_seed(seed)
        self._config, self._max_chunk, self._ratios = config, max_chunk, ratios or ()
        window = self._draw(config.head_dim, generator).bfloat16()
        kv, score = dict[int, Tensor](), dict[int, Tensor]()
        for channels in dict.fromkeys(compressor.channels for compressor in compressors):
            kv[channels], score[channels] = (self._draw(channels, generator) for _ in range(2))
        projected = {
            dims: self._draw(dims, generator).bfloat16()
            for dims in sorted(set(projected_dims) - {config.head_dim})
        }
        self.every = StepInputs(window, kv, score, projected, {})
        self.asks: Queries | None = None
        if ratios is not None:
            draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
            self.asks = Queries(
                attention=draw(_DISTINCT_QUERIES, config.num_heads, config.head_dim).bfloat16(),
                indexer=draw(_DISTINCT_QUERIES, config.index_heads, config.index_dim).bfloat16(),
                weights=draw(_DISTINCT_QUERIES, config.index_heads),
                turns={},
                sinks=draw(config.num_heads),
            )

    def _draw(self, channels: int, generator: torch.Generator) -> Tensor:
        data = torch.randn(_DISTINCT_TOKENS, channels, generator=generator)
        repeats = -(-self._max_chunk // _DISTINCT_TOKENS)
        return torch.cat([data, data.repeat(repeats, 1)[: self._max_chunk]])

    def to(self, device: torch.device) -> "InputBank":
        """The same data on a device."""
        moved = copy(self)
        moved.every = self.every.of_tokens(lambda rows: rows.to(device))
        if self.asks is not None:
            asks = self.asks.of_tokens(lambda rows: rows.to(device))
            moved.asks = replace(asks, sinks=asks.sinks.to(device))
        return moved

    def take(
        self, rows: Tensor | slice, topk: Mapping[int, Tensor], positions: Tensor | None = None
    ) -> StepInputs:
        """The inputs of a step: rows int64[T] as ``rows`` numbers them, or one after another.

        positions: Of tokens that ask, int64[T] on the host.
        """
        taken = replace(self.every.of_tokens(lambda every: every[rows]), topk=topk)
        if self.asks is None or positions is None:
            return taken
        assert isinstance(rows, Tensor)
        numbers = rows % _DISTINCT_QUERIES
        asked = self.asks.of_tokens(lambda every: every[numbers])
        turns = {
            ratio: rope_rows(self._config, ratio, positions).to(rows.device)
            for ratio in self._ratios
        }
        return replace(taken, queries=replace(asked, turns=turns))

    @staticmethod
    def rows(
        request: Ids | int,
        position: Ids,
        rejected: NDArray[np.bool_] | bool = False,
    ) -> Ids:
        """Ids of tokens, by the running number of their request and their position."""
        start = request * _STRIDE + position + _REJECTED_OFFSET * np.asarray(rejected)
        rows: Ids = start % _DISTINCT_TOKENS
        return rows


class PromptContents:
    """Input rows of the prompts in flight, by the running number of their request.

    A prompt's tokens follow from its prefix hashes, so that two prompts with equal hashes hand
    the cache equal data; all other tokens are the request's own.
    """

    def __init__(self) -> None:
        self._hashes: dict[int, tuple[Ids, int, int]] = {}

    def add(self, serial: int, request: Request) -> None:
        """A request begins."""
        if request.prefix_hashes:
            hashes = np.array(request.prefix_hashes, dtype=np.int64)
            reach = min(len(hashes) * request.hash_block_tokens, request.input_tokens)
            self._hashes[serial] = hashes, request.hash_block_tokens, reach

    def remove(self, serial: int) -> None:
        """A request has ended."""
        self._hashes.pop(serial, None)

    def rows(self, serials: Ids, positions: Ids, rejected: NDArray[np.bool_]) -> Ids:
        """Input rows of tokens, int64[T], as ``InputBank.rows`` numbers them."""
        rows = InputBank.rows(serials, positions, rejected)
        for serial in np.unique(serials).tolist():
            if serial in self._hashes:
                hashes, block_tokens, reach = self._hashes[serial]
                mine = (serials == serial) & (positions < reach)
                inside = positions[mine]
                rows[mine] = InputBank.rows(hashes[inside // block_tokens], inside)
        return rows


class EntryChooser:
    """Chooses scattered, distinct entries of every request, anew at every call."""

    def __init__(self, topk: int, seed: int) -> None:
        self._topk = topk
        self._random = np.random.default_rng(seed)
        self._scatter = self._random.permutation(topk)

    def choose(self, lengths: Ids) -> Tensor:
        """Logical entries int32[B, K] below lengths int64[B]; −1 where there are too few."""
        topk, visible = self._topk, lengths[:, None]
        jitter = self._random.random((len(lengths), 1))
        spread = ((self._scatter + jitter) * visible / topk).astype(np.int32)
        in_order = np.where(np.arange(topk) < visible, np.arange(topk), -1)
        return torch.from_numpy(np.where(visible > topk, spread, in_order).astype(np.int32))


_DISTINCT_ENTRIES = 1 << 16  # more than the keys of 256K tokens: equal scores are rare
_LAYER_STRIDE = 37  # in pages: no two layers are alike


@dataclass(frozen=True)
class _Bank:
    """Pages to copy from: their values bf16[n, D] on the host, and where they are encoded."""

    values: Tensor
    store: PageStore

    def pages(self, request: int, layer: LayerCache, first: int, count: int) -> Tensor:
        """Pages of a request's blocks ``first`` and later in a layer, int64[count]."""
        assert layer.blocks is not None
        apart = max(1, len(self.store.pages) // len(layer.blocks))
        start = request * apart + layer.schema.layer.layer_idx * _LAYER_STRIDE + first
        return (torch.arange(count) + start) % len(self.store.pages)


class PlacedContexts:
    """Places contexts in the slots of a cache, and knows what is in them."""

    def __init__(self, layers: Sequence[LayerCache], seed: int) -> None:
        """Draw and encode the entries: pages of one layout are drawn once for all layers."""
        self._layers = [layer for layer in layers if layer.parts]
        self._tokens: dict[int, int] = {}
        generator = torch.Generator().manual_seed(seed)
        self._banks: dict[PageLayout, _Bank] = {}
        for layer in self._layers:
            for store in (layer.part(part).store for part in layer.parts):
                if store.layout not in self._banks:
                    self._banks[store.layout] = _draw(layer, store, generator)

    def place(self, slot: int, request: int, tokens: int) -> None:
        """Fill the blocks of ``tokens`` tokens that a slot holds, not its window and states."""
        self._tokens[request] = tokens
        for layer in self._layers:
            assert layer.table is not None
            held = layer.table.blocks[layer.lane, slot, : layer.table.held[slot]]
            blocks = torch.from_numpy(held.astype(np.int64))
            for store in (layer.part(part).store for part in layer.parts):
                bank = self._banks[store.layout]
                device = store.pages.device
                pages = bank.pages(request, layer, 0, len(blocks)).to(device)
                store.pages[blocks.to(device)] = bank.store.pages[pages]

    def value(self, layer: LayerCache, indexer: bool, request: int, entry: int) -> Tensor | None:
        """What was encoded as an entry of a layer, bf16[D]; None where it was not placed."""
        part, owner = layer.part(indexer), self._owner(layer)
        if entry >= self._tokens.get(request, 0) // part.ratio:
            return None
        bank, each = self._banks[part.store.layout], part.store.layout.entries
        page = int(bank.pages(request, owner, entry // each, 1))
        return bank.values[page * each + entry % each]

    def _owner(self, layer: LayerCache) -> LayerCache:
        index = layer.schema.layer.kv_owner
        return next(each for each in self._layers if each.schema.layer.layer_idx == index)


def _draw(layer: LayerCache, like: PageStore, generator: torch.Generator) -> _Bank:
    each, dims = like.layout.entries, like.layout.format.dims
    pages = min(max(1, _DISTINCT_ENTRIES // each), len(like.pages))
    values = torch.randn(pages * each, dims, generator=generator).bfloat16()
    store = PageStore.allocate(like.layout, pages, like.pages.device)
    entries = torch.arange(pages * each, device=like.pages.device)
    layer.backend.entry_insert(store=store, values=values.to(like.pages.device), entries=entries)
    return _Bank(values, store)
