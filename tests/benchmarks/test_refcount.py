"""The block pool: taking, caching and evicting, in pools full of cached blocks."""

from functools import partial

import numpy as np
import pytest
import torch

from dsv4kv.cache.blocks import BlockPool
from tests.benchmarks.medians import PLAIN, Measure
from tests.systems.plain import PlainRefCounts

COUNT = 64
ROUNDS = 1000
POOLS = pytest.mark.parametrize("num_blocks", [2**16, 10**6])
KEPT_FREE = 4 * COUNT


class Ours:
    """All but a few blocks cached, in chains of ``COUNT``."""

    def __init__(self, num_blocks: int) -> None:
        self.allocator = BlockPool(num_blocks)
        for first in range(1, num_blocks - KEPT_FREE - COUNT + 2, COUNT):
            self.chain = self.cache(first)
        self.hashes = range(num_blocks, num_blocks + COUNT)
        self.taken: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []

    def cache(self, first: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        ids = self.allocator.acquire(COUNT)
        hashes = range(first, first + COUNT)
        self.allocator.register(ids, hashes, [0, *hashes[:-1]])
        self.allocator.release(ids)
        return ids

    def take(self) -> None:
        self.taken.append(self.allocator.acquire(COUNT))

    def give_back(self) -> None:
        if self.taken:
            self.allocator.release(self.taken.pop())

    def retain(self) -> None:
        self.allocator.retain(self.chain)


class Plain:
    """The re-statement in the same state."""

    def __init__(self, num_blocks: int) -> None:
        self.allocator = PlainRefCounts(num_blocks)
        for first in range(1, num_blocks - KEPT_FREE - COUNT + 2, COUNT):
            self.chain = self.allocator.allocate(COUNT)
            self.allocator.register(self.chain, range(first, first + COUNT))
            self.allocator.release(self.chain)
        self.taken: list[torch.Tensor] = []

    def take(self) -> None:
        self.taken.append(self.allocator.allocate(COUNT))

    def give_back(self) -> None:
        if self.taken:
            self.allocator.release(self.taken.pop())

    def retain(self) -> None:
        self.allocator.retain(self.chain)


MAKE: dict[str, type[Ours] | type[Plain]] = {"ours": Ours, PLAIN: Plain}
EACH = pytest.mark.parametrize("name", MAKE, ids=["ours", "plain"])


@POOLS
@EACH
def test_take_free_blocks(measure: Measure, name: str, num_blocks: int) -> None:
    scene = MAKE[name](num_blocks)
    group = f"refcount: allocate {COUNT}, {num_blocks:,} blocks mostly cached"
    measure(group, name, scene.take, setup=scene.give_back, rounds=ROUNDS)
    assert len(scene.taken) == 1


@POOLS
@EACH
def test_release_into_the_cache(measure: Measure, name: str, num_blocks: int) -> None:
    scene = MAKE[name](num_blocks)
    group = f"refcount: release {COUNT} to LRU caching, {num_blocks:,} blocks mostly cached"
    release = partial(scene.allocator.release, scene.chain)  # type: ignore[arg-type]
    measure(group, name, release, setup=scene.retain, rounds=ROUNDS)


@POOLS
@EACH
def test_evict_one(measure: Measure, name: str, num_blocks: int) -> None:
    scene = MAKE[name](num_blocks)
    group = f"refcount: evict one, {num_blocks:,} blocks mostly cached"
    rounds = ROUNDS if isinstance(scene, Ours) else 20
    measure(group, name, partial(scene.allocator.evict, 1), rounds=rounds)


@POOLS
def test_allocate_what_must_be_evicted(measure: Measure, num_blocks: int) -> None:
    scene = Ours(num_blocks)
    scene.allocator.acquire(scene.allocator.num_unused)
    group = f"refcount: allocate {COUNT} by evicting, {num_blocks:,} blocks mostly cached"
    measure(group, "ours", scene.take, rounds=200)
