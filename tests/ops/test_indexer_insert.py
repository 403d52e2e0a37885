"""Indexer keys and their Hadamard rotation."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, entry_format
from dsv4kv.ops import codec, cpu, reference
from tests.ops.samples import (
    POISON,
    each_backend,
    generator,
    poisoned_store,
    random_values,
    read_entries,
    twin,
    within_one_step,
)

BF16 = entry_format("indexer", "bf16")

each_format = pytest.mark.parametrize("name", FORMATS["indexer"])


def _hadamard_matrix() -> Tensor:
    """Sylvester's: element (i, j) is −1 to the number of bits that i and j share, over √128."""
    signs = [[(-1) ** (i & j).bit_count() for j in range(128)] for i in range(128)]
    return torch.tensor(signs, dtype=torch.float64).div(128**0.5)


def _keys(count: int) -> Tensor:
    return torch.randn(count, 128, generator=generator(8)).bfloat16()


@each_backend
def test_hadamard_multiplies_by_the_orthonormal_sylvester_matrix(backend: ModuleType) -> None:
    keys, store = _keys(16), poisoned_store(BF16)
    backend.indexer_insert(store, keys, torch.arange(16), True)
    expected = keys.double() @ _hadamard_matrix()
    # One rounding to bf16 is at most 2^-8 of the value; float32 sums add 1e-6.
    torch.testing.assert_close(
        read_entries(store, list(range(16))).double(), expected, rtol=2.0**-8, atol=1e-6
    )


def test_hadamard_matrix_is_its_own_inverse() -> None:
    matrix = _hadamard_matrix()
    torch.testing.assert_close(matrix @ matrix, torch.eye(128, dtype=torch.float64))


def test_rotating_twice_gives_the_input_but_for_two_roundings() -> None:
    keys = _keys(64)
    twice = codec.hadamard(codec.hadamard(keys))
    # The first rounding's errors, each at most 2^-8 of its value, spread over 128 channels.
    torch.testing.assert_close(twice, keys, rtol=2.0**-8, atol=2.0**-6)
    rms = (twice - keys).float().square().mean().sqrt() / keys.float().square().mean().sqrt()
    assert float(rms) < 2.0**-8


@each_format
def test_rotated_insert_equals_the_reference_within_a_step(name: str) -> None:
    entry = FORMATS["indexer"][name]
    store, keys = poisoned_store(entry), _keys(32)
    other, entries = twin(store), torch.arange(95, 63, -1)
    cpu.indexer_insert(store, keys, entries, True)
    reference.indexer_insert(other, keys, entries, True)
    found, expected = (read_entries(s, entries.tolist()) for s in (store, other))
    assert within_one_step(entry, found, expected)
    assert bool((store.pages[:2] == POISON).all())


@each_format
def test_insert_without_rotation_equals_the_reference(name: str) -> None:
    entry = FORMATS["indexer"][name]
    store, keys = poisoned_store(entry), random_values(entry, 6, seed=9)
    other, entries = twin(store), torch.tensor([5, -1, 96, 0, 95, 33])
    cpu.indexer_insert(store, keys, entries, False)
    reference.indexer_insert(other, keys, entries, False)
    assert torch.equal(store.pages, other.pages)


@each_backend
def test_rotation_leaves_the_keys_of_the_caller_alone(backend: ModuleType) -> None:
    keys = _keys(2)
    before = keys.clone()
    backend.indexer_insert(poisoned_store(BF16), keys, torch.arange(2), True)
    assert torch.equal(keys, before)
