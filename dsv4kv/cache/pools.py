"""The memory of a cache: pages under block ids, rings and compressor states under slots."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops.storage import PageStore


class PagedKVPool:
    """Compressed entries of one layer and, under the same block ids, its indexer keys."""

    def __init__(self, schema: LayerCacheSchema, num_blocks: int, device: torch.device) -> None:
        """Allocate the pages of a layer that owns compressed KV."""
        if schema.main is None:
            raise ValueError(f"layer {schema.layer.layer_idx} owns no compressed KV")
        self.main = PageStore.allocate(schema.main, num_blocks, device)
        self.indexer = (
            PageStore.allocate(schema.indexer, num_blocks, device) if schema.indexer else None
        )

    def memory_bytes(self) -> int:
        """Bytes allocated."""
        return self.main.pages.nbytes + (self.indexer.pages.nbytes if self.indexer else 0)


class StateCachePool:
    """Window rings and compressor states of all layers of one type.

    The layers lie in one tensor, so that a slot is reset in all of them at once.

    Attributes:
        windows: Ring of every layer, one page per slot; empty without window.
        state: float32[layers, slots, …] compressor states, or None.
        indexer_state: The same of the indexers' compressors, or None.
    """

    def __init__(
        self, schemas: Sequence[LayerCacheSchema], max_requests: int, device: torch.device
    ) -> None:
        """Allocate for layers of one shape; all slots start fresh."""
        first = schemas[0]
        self.windows = [
            PageStore.allocate(schema.window, max_requests, device)
            for schema in schemas
            if schema.window
        ]
        lead = (len(schemas), max_requests)
        self.state = _allocate(lead, first.state_shape, device)
        self.indexer_state = _allocate(lead, first.indexer_state_shape, device)
        for slot in range(max_requests):
            self.reset_slot(slot)

    def reset_slot(self, slot: int) -> None:
        """Forget a slot's tokens in every layer: scores −inf, sums 0."""
        for state in (self.state, self.indexer_state):
            if state is not None:
                # Ring: (kv, score). Online: (max, denominator, weighted sum).
                scores = 1 if state.dim() == 5 else 0
                state[:, slot] = 0.0
                state[:, slot, scores] = -math.inf

    def memory_bytes(self) -> int:
        """Bytes allocated."""
        tensors = [ring.pages for ring in self.windows] + self.states()
        return sum(tensor.nbytes for tensor in tensors)

    def states(self) -> list[Tensor]:
        """The compressor states there are."""
        return [state for state in (self.state, self.indexer_state) if state is not None]


def _allocate(
    lead: tuple[int, int], shape: tuple[int, ...], device: torch.device
) -> Tensor | None:
    return torch.empty(*lead, *shape, device=device) if shape else None
