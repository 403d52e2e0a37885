"""Taking and giving back 64 blocks, in pools of any size."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dsv4kv.cache.blocks import BlockPool
from tests.benchmarks.medians import PLAIN, Measure
from tests.systems.plain import PlainAllocator

COUNT = 64
ROUNDS = 2000
POOLS = pytest.mark.parametrize("num_blocks", [2**10, 2**16, 2**20])
ALLOCATORS = pytest.mark.parametrize(
    ("name", "make"), [("ours", BlockPool), (PLAIN, PlainAllocator)], ids=["ours", "plain"]
)
Make = Callable[[int], Any]


# A stack gives the blocks last returned first, so the ids stay the same from round to round and
# the timed call is the allocator's alone.


@POOLS
@ALLOCATORS
def test_acquire(measure: Measure, name: str, make: Make, num_blocks: int) -> None:
    allocator = make(num_blocks)
    ids = allocator.acquire(COUNT)
    group = f"acquire {COUNT} of {num_blocks:,} blocks"
    give_back = partial(allocator.release, ids)
    measure(group, name, partial(allocator.acquire, COUNT), setup=give_back, rounds=ROUNDS)
    assert allocator.num_free == num_blocks - COUNT


@POOLS
@ALLOCATORS
def test_release(measure: Measure, name: str, make: Make, num_blocks: int) -> None:
    allocator = make(num_blocks)
    ids = allocator.acquire(COUNT)
    allocator.release(ids)

    def take() -> None:
        assert sorted(allocator.acquire(COUNT)) == sorted(ids)

    group = f"release {COUNT} of {num_blocks:,} blocks"
    measure(group, name, partial(allocator.release, ids), setup=take, rounds=ROUNDS)
    assert allocator.num_free == num_blocks
