"""Contexts that are placed, not served: a decode step over a million tokens begins in seconds.

Compressed entries are drawn at random and encoded once, and whole pages of them are copied to the
blocks that a request holds; which page goes where follows from request, layer and block, so every
entry's value is known. Windows and compressor states are as served: the end of the prompt is
written by the cache's own operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.layers import LayerCache
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import CHECKPOINT_TOKENS
from dsv4kv.ops.storage import PageStore

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


def first_written(tokens: int, window_rows: int) -> int:
    """Where the written end of a placed prompt begins: early enough for ring and states."""
    return max(0, (tokens - window_rows) // CHECKPOINT_TOKENS * CHECKPOINT_TOKENS)


def _draw(layer: LayerCache, like: PageStore, generator: torch.Generator) -> _Bank:
    each, dims = like.layout.entries, like.layout.format.dims
    pages = min(max(1, _DISTINCT_ENTRIES // each), len(like.pages))
    values = torch.randn(pages * each, dims, generator=generator).bfloat16()
    store = PageStore.allocate(like.layout, pages, like.pages.device)
    entries = torch.arange(pages * each, device=like.pages.device)
    layer.backend.entry_insert(store=store, values=values.to(like.pages.device), entries=entries)
    return _Bank(values, store)
