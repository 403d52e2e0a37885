"""Steps that no request is behind: full pages, any table, to time operations on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.handle import LayerCache
from dsv4kv.cache.table import BlockTable
from dsv4kv.cache.view import Completed, EntryGroup
from dsv4kv.ops.storage import PageStore

_BLOCK_TOKENS = 128  # every compress ratio divides it
_FILLED_AT_ONCE = 8192


class UniformStep:
    """A decode step of requests in slots 0, 1, … that all have ``tokens`` tokens; a ``StepView``.

    ``tokens`` is a multiple of 128, so every layer completes an entry of every request.
    """

    def __init__(
        self, requests: int, tokens: int, table: Tensor, group: EntryGroup | None = None
    ) -> None:
        """Work everything out, so that a timed call computes nothing but its operation.

        Args:
            requests: How many.
            tokens: Of each of them.
            table: int32[at least requests, width], blocks of every slot.
            group: What decides which entries the layer writes; None without compressed KV.
        """
        self.num_requests = requests
        self.max_request_tokens = 1
        self.tokens = tokens
        self.table = table
        self.after = np.full(requests, tokens)
        self.request_slots = torch.arange(requests, device=table.device)
        self.token_slots = self.request_slots
        self.tokens_after = torch.full((requests,), tokens, device=table.device)
        self.positions = self.tokens_after - 1
        self._lengths: dict[int, Tensor] = {}
        self._completed: dict[tuple[int, int], Completed] = {}
        if group is not None:
            _, _, ratio, per_block = group
            self._work_out(ratio, per_block)

    def check_current(self) -> None:
        """See ``StepView``; there is no request that could leave."""

    def chunk_start(self) -> tuple[int, int]:
        """See ``StepView``."""
        return 0, self.tokens - 1

    def lengths(self, ratio: int) -> Tensor:
        """See ``StepView``; of the layer's ratio."""
        return self._lengths[ratio]

    def completed(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Completed:
        """See ``StepView``: the last entry of every request, in the step's own table."""
        return self._completed[ratio, per_block]

    def _work_out(self, ratio: int, per_block: int) -> None:
        logical = self.tokens // ratio - 1
        blocks = self.table[: self.num_requests, logical // per_block].long()
        entries = blocks * per_block + logical % per_block
        self._lengths[ratio] = self.tokens_after // ratio
        self._completed[ratio, per_block] = Completed(self.token_slots, self.positions, entries)

    def token_entries(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Tensor:
        """See ``StepView``: every token completes one."""
        return self.completed(table, lane, ratio, per_block).entries


Stage = tuple[LayerCache, UniformStep]
"""A layer under a table, and a step on it."""


def draw_stages(layer: LayerCache, requests: int, generator: torch.Generator) -> list[Stage]:
    """The layer under tables of random blocks, no block in two of them.

    The requests are as long as the pool and the table's rows allow; there is one table where the
    layer has none.
    """
    if layer.table is None or layer.blocks is None or layer.main is None:
        device = layer.window.pages.device
        nothing = torch.zeros(requests, 0, dtype=torch.int32, device=device)
        return [(layer, UniformStep(requests, _BLOCK_TOKENS, nothing))]
    slots, width = layer.blocks.shape
    pages = len(layer.main.store.pages)
    columns = min(width, pages // requests)
    order = torch.randperm(pages, generator=generator).int()
    stages = []
    for first in range(0, pages - requests * columns + 1, requests * columns):
        blocks = torch.full((slots, width), -1, dtype=torch.int32)
        chosen = order[first : first + requests * columns]
        blocks[:requests, :columns] = chosen.view(requests, columns)
        moved = blocks.to(layer.blocks.device)
        tokens = columns * layer.schema.block_tokens
        step = UniformStep(requests, tokens, moved, layer.entry_group)
        stages.append((replace(layer, blocks=moved), step))
    return stages


def fill_layers(layers: Sequence[LayerCache], generator: torch.Generator) -> None:
    """Fill every page, ring and state with normal data: zeros would be moved too fast."""
    for layer in layers:
        _fill_pages(layer, layer.window, generator)
        for part in filter(None, (layer.main, layer.indexer)):
            _fill_pages(layer, part.store, generator)
            fill_state(part.state, generator)


def fill_state(state: Tensor, generator: torch.Generator) -> None:
    """Fill compressor states, as they are allocated: kv and score, or running sums."""
    on_device = torch.Generator(state.device).manual_seed(generator.initial_seed())
    state.normal_(generator=on_device)
    if state.dim() == 3:  # max, denominator, weighted sum
        state[:, 1].abs_().add_(1)


def _fill_pages(layer: LayerCache, store: PageStore, generator: torch.Generator) -> None:
    device, dims = store.pages.device, store.layout.format.dims
    values = torch.randn(_FILLED_AT_ONCE, dims, generator=generator).bfloat16().to(device)
    for first in range(0, store.num_entries, _FILLED_AT_ONCE):
        entries = torch.arange(first, min(first + _FILLED_AT_ONCE, store.num_entries))
        layer.backend.entry_insert(store, values[: len(entries)], entries.to(device))
