"""The three systems restated in the plainest way: the oracle of their answers, and a baseline.

Python loops over layers, requests and tokens, tensors read one scalar at a time, nothing checked:
what engines start out with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
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


class PlainRefCounts:
    """Reference counts, hashes and times of use in tensors; a free list next to them."""

    def __init__(self, num_blocks: int) -> None:
        self.stack = PlainAllocator(num_blocks)
        self.refs = torch.zeros(num_blocks, dtype=torch.int32)
        self.hashes = torch.full((num_blocks,), -1)
        self.used = torch.zeros(num_blocks, dtype=torch.int64)
        self.blocks: dict[int, int] = {}
        self.now = 0

    def allocate(self, count: int) -> Tensor:
        if count > self.stack.num_free:
            self.evict(count - self.stack.num_free)
        ids = self.stack.acquire(count)
        self.refs[ids] = 1
        self.now += 1
        self.used[ids] = self.now
        return ids

    def register(self, ids: Tensor, hashes: Sequence[int]) -> None:
        self.hashes[ids] = torch.tensor(hashes)
        for block, hash_ in zip(ids.tolist(), hashes, strict=True):
            self.blocks.setdefault(hash_, block)

    def release(self, ids: Tensor) -> None:
        self.refs.index_add_(0, ids, torch.full((len(ids),), -1, dtype=torch.int32))
        self.now += 1
        self.used[ids] = self.now
        done = ids[(self.refs[ids] == 0) & (self.hashes[ids] == -1)]
        if len(done):
            self.stack.release(done)

    def evict(self, count: int) -> None:
        candidates = torch.nonzero((self.refs == 0) & (self.hashes != -1)).flatten()
        oldest = candidates[torch.argsort(self.used[candidates])[:count]]
        for hash_ in self.hashes[oldest].tolist():
            self.blocks.pop(hash_, None)
        self.hashes[oldest] = -1
        self.stack.release(oldest)


class PlainRouting:
    """Experts of the tokens of every block, stored token by token."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.blocks: dict[int, dict[int, NDArray[np.int16]]] = {}

    def store(self, ids: Sequence[int], flat: NDArray[np.int16]) -> None:
        for number in range(len(flat)):
            block, place = ids[number // self.block_tokens], number % self.block_tokens
            self.blocks.setdefault(block, {})[place] = flat[number]

    def reconstruct(self, ids: Sequence[int], total: int) -> NDArray[np.int16] | None:
        rows = []
        for number in range(total):
            row = self.blocks.get(ids[number // self.block_tokens], {})
            if number % self.block_tokens not in row:
                return None
            rows.append(row[number % self.block_tokens])
        return np.stack(rows)


class PlainNode:
    """One token of a cached prompt."""

    def __init__(self) -> None:
        self.children: dict[int, PlainNode] = {}
        self.slot = self.version = self.used = 0


class PlainRadix:
    """A tree with a node for every token."""

    def __init__(self) -> None:
        self.root = PlainNode()
        self.now = 0

    def insert(self, tokens: Sequence[int], slot: int, version: int) -> None:
        node, self.now = self.root, self.now + 1
        for token in tokens:
            if token not in node.children:
                node.children[token] = PlainNode()
            node = node.children[token]
            node.slot, node.version, node.used = slot, version, self.now

    def find(self, tokens: Sequence[int]) -> tuple[int, int, int]:
        node, length, self.now = self.root, 0, self.now + 1
        for token in tokens:
            after = node.children.get(token)
            if after is None:
                break
            node, length = after, length + 1
            node.used = self.now
        return length, node.slot, node.version


class PlainSlots:
    """Free slots as the bits of a whole number; nothing is checked."""

    def __init__(self, max_slots: int) -> None:
        self.mask = (1 << max_slots) - 1
        self.versions = [0] * max_slots

    def alloc(self) -> int:
        if not self.mask:
            return -1
        slot = (self.mask & -self.mask).bit_length() - 1
        self.mask &= ~(1 << slot)
        self.versions[slot] += 1
        return slot

    def free(self, slot: int) -> None:
        self.mask |= 1 << slot

    def occupy(self, slot: int) -> None:
        self.mask &= ~(1 << slot)

    def is_free(self, slot: int) -> bool:
        return bool(self.mask >> slot & 1)

    def version(self, slot: int) -> int:
        return self.versions[slot]
