"""The algorithms to beat, restated in the plainest way, for measurements side by side.

A cache with tables of its own in every layer, free lists and tables in torch tensors, and Python
loops over layers and requests that read one scalar at a time: what engines start out with. Only
the work per step is like that; wherever two ways are equally plain, the faster one is taken.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class PlainAllocator:
    """A stack of free ids in a tensor; nothing is checked but the number that is free."""

    def __init__(self, num_blocks: int) -> None:
        self.free = torch.arange(num_blocks - 1, -1, -1)
        self.num_free = num_blocks

    def acquire(self, count: int) -> Tensor:
        if count > self.num_free:
            raise RuntimeError("out of blocks")
        self.num_free -= count
        return self.free[self.num_free : self.num_free + count].clone()

    def release(self, ids: Tensor) -> None:
        self.free[self.num_free : self.num_free + len(ids)] = ids
        self.num_free += len(ids)


class PlainLayer:
    """Free blocks and block table of one layer; a block covers 128 tokens."""

    def __init__(self, ratio: int, num_blocks: int, num_slots: int, width: int) -> None:
        self.ratio = ratio
        self.entries_per_block = 128 // ratio
        self.allocator = PlainAllocator(num_blocks)
        self.table = torch.full((num_slots, width), -1, dtype=torch.int32)
        self.held = torch.zeros(num_slots, dtype=torch.int64)


class PlainCache:
    """One ``PlainLayer`` for every layer with compressed KV."""

    def __init__(self, ratios: Sequence[int], num_blocks: int, num_slots: int, width: int) -> None:
        self.layers = [PlainLayer(ratio, num_blocks, num_slots, width) for ratio in ratios]

    def prepare_forward(self, slots: Tensor, before: Tensor, after: Tensor) -> None:
        for layer in self.layers:
            for each in zip(slots.tolist(), before.tolist(), after.tolist(), strict=True):
                self._grow(layer, *each)

    def _grow(self, layer: PlainLayer, slot: int, before: int, after: int) -> None:
        if after // layer.ratio == before // layer.ratio:
            return
        held = int(layer.held[slot])
        needed = -(-(after // layer.ratio) // layer.entries_per_block)
        if needed > held:
            layer.table[slot, held:needed] = layer.allocator.acquire(needed - held)
            layer.held[slot] = needed

    def release_request(self, slot: int) -> None:
        for layer in self.layers:
            held = int(layer.held[slot])
            layer.allocator.release(layer.table[slot, :held])
            layer.table[slot, :held] = -1
            layer.held[slot] = 0
