"""Taking and giving back 64 blocks, in pools of any size."""

from collections.abc import Callable
from typing import Any

import pytest

from dsv4kv.cache.allocator import BlockAllocator
from tests.benchmarks.medians import PLAIN, Measure
from tests.benchmarks.restatement import PlainAllocator

COUNT = 64
ROUNDS = 2000
POOLS = pytest.mark.parametrize("num_blocks", [2**10, 2**16, 2**20])
ALLOCATORS = pytest.mark.parametrize(
    ("name", "make"), [("ours", BlockAllocator), (PLAIN, PlainAllocator)], ids=["ours", "plain"]
)
Make = Callable[[int], Any]


@POOLS
@ALLOCATORS
def test_acquire(measure: Measure, name: str, make: Make, num_blocks: int) -> None:
    allocator = make(num_blocks)
    taken: list[Any] = []

    def give_back() -> None:
        while taken:
            allocator.release(taken.pop())

    def acquire() -> None:
        taken.append(allocator.acquire(COUNT))

    group = f"acquire {COUNT} of {num_blocks:,} blocks"
    measure(group, name, acquire, setup=give_back, rounds=ROUNDS)
    assert allocator.num_free == num_blocks - COUNT


@POOLS
@ALLOCATORS
def test_release(measure: Measure, name: str, make: Make, num_blocks: int) -> None:
    allocator = make(num_blocks)
    taken: list[Any] = []

    def take() -> None:
        taken.append(allocator.acquire(COUNT))

    def release() -> None:
        allocator.release(taken.pop())

    group = f"release {COUNT} of {num_blocks:,} blocks"
    measure(group, name, release, setup=take, rounds=ROUNDS)
    assert allocator.num_free == num_blocks
