"""Compressor states: rows of a ring, or a running softmax."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from dsv4kv.ops import cpu, reference
from dsv4kv.ops.compressor import Compressor
from tests.ops.samples import (
    each_backend,
    fresh_online,
    full_size_compressor,
    random_tokens,
    same_bits,
    small_compressor,
)

RINGS = {
    "csa": ("csa", 8),
    "csa with drafts": ("csa", 8 + 3),
    "hca": ("hca", 128),
    "hca with drafts": ("hca", 128 + 3),
    "indexer": ("indexer", 8),
}

each_ring = pytest.mark.parametrize(("kind", "rows"), RINGS.values(), ids=RINGS)


def _nan_ring(compressor: Compressor, rows: int, slots: int = 3) -> Tensor:
    return torch.full((slots, 2, rows, compressor.channels), torch.nan)


@each_backend
@each_ring
def test_ring_row_takes_kv_and_biased_score_and_other_rows_stay(
    backend: ModuleType, kind: str, rows: int
) -> None:
    compressor = full_size_compressor(kind)
    state, (kv, score) = _nan_ring(compressor, rows), random_tokens(compressor, 6, seed=1)
    slots, positions = [2, 2, -1, 0, 2, 0], [126, 127, 3, 0, 128, 1]
    backend.state_append(
        compressor, state, kv, score, torch.tensor(slots), torch.tensor(positions)
    )
    expected = _nan_ring(compressor, rows)
    for t, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        if slot >= 0:
            expected[slot, 0, position % rows] = kv[t]
            expected[slot, 1, position % rows] = (
                score[t] + compressor.ape[position % compressor.ratio]
            )
    assert same_bits(state, expected)


@each_backend
def test_online_state_of_a_first_token_is_that_token_whatever_was_there(
    backend: ModuleType,
) -> None:
    compressor = full_size_compressor("hca")
    state, (kv, score) = torch.full((3, 3, 512), torch.nan), random_tokens(compressor, 2, seed=2)
    backend.state_append(
        compressor, state, kv, score, torch.tensor([2, 0]), torch.tensor([0, 1280])
    )
    for t, slot in enumerate([2, 0]):
        expected = torch.stack([score[t] + compressor.ape[0], torch.ones(512), kv[t]])
        assert torch.equal(state[slot], expected)
    assert bool(state[1].isnan().all())


@each_backend
def test_online_state_is_the_softmax_of_the_group_so_far(backend: ModuleType) -> None:
    compressor = small_compressor(128, overlap=False)
    state, (kv, score) = fresh_online(compressor, slots=2), random_tokens(compressor, 100, seed=3)
    for t in range(100):
        token = slice(t, t + 1)
        slot, position = torch.tensor([1]), torch.tensor([256 + t])
        backend.state_append(compressor, state, kv[token], 20 * score[token], slot, position)
    biased = (20 * score + compressor.ape[:100]).double()
    top = biased.amax(dim=0)
    weight = torch.exp(biased - top)
    assert torch.equal(state[1, 0].double(), top)
    torch.testing.assert_close(state[1, 1].double(), weight.sum(dim=0), rtol=1e-5, atol=0)
    # Sums may cancel: the error is relative to the largest term.
    torch.testing.assert_close(
        state[1, 2].double(), (weight * kv.double()).sum(dim=0), rtol=0, atol=1e-5 * 4
    )


def test_online_append_of_a_batch_equals_the_reference() -> None:
    compressor = full_size_compressor("hca")
    states = [fresh_online(compressor, slots=5) for _ in range(2)]
    for step, slots in enumerate([[0, 3, 4], [3, -1, 0], [4, 0, 3]]):
        kv, score = random_tokens(compressor, 3, seed=step)
        where = torch.tensor(slots), torch.tensor([126 + step, 40 + step, 127 + step])
        for backend, state in zip((cpu, reference), states, strict=True):
            backend.state_append(compressor, state, kv, score, *where)
    torch.testing.assert_close(*states, rtol=1e-6, atol=1e-6)
    assert bool((states[0][1:3, 0] == -torch.inf).all())  # slots that got no token


@each_backend
def test_append_leaves_the_tokens_of_the_caller_alone(backend: ModuleType) -> None:
    compressor = full_size_compressor("csa")
    kv, score = random_tokens(compressor, 2, seed=5)
    before = kv.clone(), score.clone()
    where = torch.tensor([0, 0]), torch.tensor([0, 1])
    backend.state_append(compressor, _nan_ring(compressor, 8), kv, score, *where)
    assert torch.equal(kv, before[0])
    assert torch.equal(score, before[1])
