"""Blocks with several holders, restated in the plainest way: an eviction scans all of them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.systems.plain.pools import PlainAllocator


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

    def retain(self, ids: Tensor) -> None:
        self.refs[ids] += 1
        self.now += 1
        self.used[ids] = self.now

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


_POWERS: dict[int, Tensor] = {}


def plain_hashes(tokens: Tensor, block_tokens: int) -> list[int]:
    """Chained polynomial hashes of full blocks, one tensor product for each."""
    powers = _POWERS.get(block_tokens)
    if powers is None:
        powers = torch.tensor([pow(31, n, 2**61 - 1) for n in range(block_tokens)])
        _POWERS[block_tokens] = powers
    hashes, before = [], 0
    for at in range(0, len(tokens) - block_tokens + 1, block_tokens):
        block = int((tokens[at : at + block_tokens] * powers).sum())
        before = (before * 1_000_003 ^ block) % (2**61 - 1) + 1
        hashes.append(before)
    return hashes


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
