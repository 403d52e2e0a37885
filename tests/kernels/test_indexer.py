"""Indexer keys on the CPU twin: rotated, quantised and read back as by the CPU backend."""

import pytest
import torch

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import cpu
from dsv4kv.ops.kernels.gather import plan_gather_all
from dsv4kv.ops.kernels.insert import plan_indexer_insert
from tests.kernels.launches import GuardedOutput, each_order
from tests.kernels.shim.twin import run
from tests.ops.samples import (
    generator,
    nan_output,
    poisoned_store,
    random_values,
    same_bits,
    twin,
)

each_format = pytest.mark.parametrize("name", FORMATS["indexer"])


@each_order
@each_format
@pytest.mark.parametrize("hadamard", [False, True], ids=["plain", "hadamard"])
def test_keys_become_the_bytes_of_the_cpu_backend(
    name: str, hadamard: bool, reverse: bool
) -> None:
    entry = FORMATS["indexer"][name]
    store, keys = poisoned_store(entry, entries=64, pages=4), random_values(entry, 200, seed=1)
    expected = twin(store)
    entries = torch.randperm(store.num_entries, generator=generator(1))[:200]
    entries[[0, 10, 199]] = torch.tensor([-1, 256, 2**62])
    cpu.indexer_insert(expected, keys, entries, hadamard)
    run(plan_indexer_insert(store, keys, entries, hadamard), reverse=reverse)
    assert torch.equal(store.pages, expected.pages)


def test_rotation_adds_in_the_order_of_the_cpu_backend() -> None:
    # Two large channels cancel in half of the sums; what is left of the others tells the order.
    random = generator(3)
    keys = torch.randn(64, 128, generator=random)
    large = torch.rand(64, 128, generator=random).argsort(dim=1)[:, :2]
    keys = keys.scatter(1, large, 2.0**22).bfloat16()
    store = poisoned_store(FORMATS["indexer"]["bf16"], entries=64, pages=1)
    expected, entries = twin(store), torch.arange(64)
    cpu.indexer_insert(expected, keys, entries, True)
    run(plan_indexer_insert(store, keys, entries, True))
    assert torch.equal(store.pages, expected.pages)


def test_rotation_divides_by_the_root_of_128_and_rounds_once() -> None:
    # Sums for which a product with the rounded inverse would give another bf16.
    sums, root = 1 + torch.arange(2**23) * 2.0**-23, torch.tensor(128.0).sqrt()
    sums = sums[(sums / root).bfloat16() != (sums * (1 / root)).bfloat16()][:32]
    assert len(sums) == 32
    keys = torch.zeros(32, 128)
    for i in range(3):  # 24 bits of significand in three pieces of 8
        keys[:, i] = (sums.view(torch.int32) & -0x10000).view(torch.float32)
        sums = sums - keys[:, i]
    store = poisoned_store(FORMATS["indexer"]["bf16"], entries=32, pages=1)
    expected, entries = twin(store), torch.arange(32)
    cpu.indexer_insert(expected, keys.bfloat16(), entries, True)
    run(plan_indexer_insert(store, keys.bfloat16(), entries, True))
    assert torch.equal(store.pages, expected.pages)


@each_format
def test_keys_come_back_through_the_common_gather(name: str) -> None:
    store = poisoned_store(FORMATS["indexer"][name], entries=64, pages=2)
    keys = random_values(store.layout.format, 128, seed=2)
    run(plan_indexer_insert(store, keys, torch.arange(128), True))
    table, slots = torch.tensor([[1, 0]], dtype=torch.int32), torch.tensor([0])
    expected, guarded = nan_output(1, 101, 128), GuardedOutput.of(1, 101, 128)
    lengths = torch.tensor([101])
    cpu.gather_all(store, table, slots, lengths, expected)
    run(plan_gather_all(store, table, slots, lengths, guarded.out))
    assert same_bits(guarded.content(), expected)
