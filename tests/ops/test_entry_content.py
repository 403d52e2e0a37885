"""What an entry is, from the report's formulas in float64 with complex rotations."""

from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.ops.storage import Compressor
from tests.examples import examples
from tests.ops.samples import (
    angles,
    bf16_entry,
    each_backend,
    fresh_ring,
    full_size_compressor,
    poisoned_store,
    random_tokens,
    read_entries,
)


def _assert_rounded(found: Tensor, exact: Tensor) -> None:
    """A rounding to bf16 is at most 2^-8 of the value; float32 pooling adds less than 1e-5."""
    torch.testing.assert_close(found, exact, rtol=2.0**-8, atol=1e-5)


def _entry(compressor: Compressor, kv: Tensor, score: Tensor, position: int) -> Tensor:
    """Entry from the rows it pools, biased scores: float64[d]."""
    weight = torch.softmax(score.double(), dim=0)
    pooled = (weight * kv.double()).sum(dim=0)
    normed = pooled / (pooled.square().mean() + compressor.norm_eps).sqrt()
    normed = normed * compressor.norm_weight.double()
    pairs = compressor.rotated_pairs
    tail = torch.view_as_complex(normed[-2 * pairs :].view(pairs, 2).contiguous())
    angle = angles(compressor, position)
    tail = tail * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([normed[: -2 * pairs], torch.view_as_real(tail).flatten()])


def _halves(compressor: Compressor, rows: Tensor) -> Tensor:
    """Previous tokens give their first d channels, current tokens their second."""
    if not compressor.overlap:
        return rows
    m, d = compressor.ratio, compressor.dim
    return torch.cat([rows[:m, :d], rows[m:, d:]])


def _flushed(backend: ModuleType, compressor: Compressor, state: Tensor, position: int) -> Tensor:
    """The entry that ends at ``position`` of slot 0: float64[d]."""
    store = poisoned_store(bf16_entry(compressor), entries=1, pages=1)
    where = torch.tensor([0]), torch.tensor([position])
    backend.flush(compressor, state, *where, store, torch.tensor([0]))
    return read_entries(store, [0])[0].double()


@each_backend
@pytest.mark.parametrize("kind", ["csa", "hca"])
@examples(25)
@given(st.integers(1, 8191), st.integers(0, 2**32 - 1))
def test_entry_pools_normalises_and_rotates_as_the_report_says(
    backend: ModuleType, kind: str, index: int, seed: int
) -> None:
    compressor = full_size_compressor(kind)
    m, rows = compressor.ratio, compressor.rows
    end = (index + 1) * m - 1
    positions = torch.arange(end + 1 - rows, end + 1)
    kv, score = random_tokens(compressor, rows, seed)
    state = fresh_ring(compressor)
    backend.state_append(compressor, state, kv, score, torch.zeros(rows).long(), positions)
    biased = score + compressor.ape[positions % m]
    expected = _entry(compressor, _halves(compressor, kv), _halves(compressor, biased), index * m)
    found = _flushed(backend, compressor, state, end)
    _assert_rounded(found, expected)


@each_backend
def test_first_csa_entry_pools_only_its_own_four_tokens(backend: ModuleType) -> None:
    compressor = full_size_compressor("csa")
    state, (kv, score) = fresh_ring(compressor), random_tokens(compressor, 4, seed=3)
    where = torch.zeros(4).long(), torch.arange(4)
    backend.state_append(compressor, state, kv, score, *where)
    biased = (score + compressor.ape)[:, 512:]
    expected = _entry(compressor, kv[:, 512:], biased, 0)
    _assert_rounded(_flushed(backend, compressor, state, 3), expected)
