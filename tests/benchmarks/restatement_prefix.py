"""Prefix caches to beat, told in the plainest way: a dict per token, a scan per eviction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.benchmarks.restatement import PlainAllocator


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


class PlainRefCounts:
    """Reference counts, hashes and times of use in tensors; a free list beside them."""

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
