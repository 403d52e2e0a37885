"""Tokens into compressor states: exact in a ring, within rounding in an online state."""

import pytest
import torch
from torch import Tensor

from dsv4kv.ops import cpu
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.kernels.state import plan_state_append
from tests.kernels.launches import each_order, on_blocks
from tests.kernels.shim.twin import run
from tests.ops.samples import fresh_online, full_size_compressor, random_tokens, same_bits

RINGS = {
    "csa": ("csa", 8),
    "csa with drafts": ("csa", 8 + 3),
    "hca": ("hca", 128),
    "hca with drafts": ("hca", 128 + 3),
    "indexer": ("indexer", 8),
}
each_ring = pytest.mark.parametrize(("kind", "rows"), RINGS.values(), ids=RINGS)

SLOTS = 3
HCA = full_size_compressor("hca")
FAR = 2**40 + 5  # positions are 64-bit


def _append(
    compressor: Compressor,
    state: Tensor,
    tokens: tuple[Tensor, Tensor],
    slots: list[int],
    positions: list[int],
    *,
    reverse: bool = False,
) -> None:
    launch = plan_state_append(
        compressor, state, *tokens, torch.tensor(slots), torch.tensor(positions)
    )
    run(on_blocks(launch, 2), reverse=reverse)


@each_order
@each_ring
def test_ring_rows_equal_the_backends_and_other_rows_stay(
    kind: str, rows: int, reverse: bool
) -> None:
    compressor = full_size_compressor(kind)
    found = torch.full((SLOTS, 2, rows, compressor.channels), torch.nan)
    expected = found.clone()
    tokens = random_tokens(compressor, 7, seed=1)
    slots, positions = [2, 2, -1, 0, 2, 0, 1], [126, 127, 3, 0, 128, 1, FAR]
    _append(compressor, found, tokens, slots, positions, reverse=reverse)
    cpu.state_append(compressor, expected, *tokens, torch.tensor(slots), torch.tensor(positions))
    assert same_bits(found, expected)


@pytest.mark.parametrize("online", [False, True], ids=["ring", "online"])
@pytest.mark.parametrize(
    ("slot", "position"), [(-1, 5), (-(2**40), 5), (SLOTS, 5), (2**40, 5), (1, -1), (1, -FAR)]
)
def test_a_token_that_cannot_be_touches_nothing(online: bool, slot: int, position: int) -> None:
    shape = (SLOTS, 3, 512) if online else (SLOTS, 2, 128, 512)
    state = torch.full(shape, 7.0)
    _append(HCA, state, random_tokens(HCA, 2, seed=1), [slot, slot], [position, position])
    assert bool((state == 7.0).all())


def test_online_state_of_a_first_token_is_that_token_whatever_was_there() -> None:
    state, (kv, score) = torch.full((3, 3, 512), torch.nan), random_tokens(HCA, 2, seed=2)
    _append(HCA, state, (kv, score), [2, 0], [0, 1280])
    for t, slot in enumerate([2, 0]):
        expected = torch.stack([score[t] + HCA.ape[0], torch.ones(512), kv[t]])
        assert torch.equal(state[slot], expected)
    assert bool(state[1].isnan().all())


@each_order
def test_online_state_is_the_backends_within_rounding(reverse: bool) -> None:
    found, (kv, score) = fresh_online(HCA, slots=2), random_tokens(HCA, 40, seed=3)
    expected = found.clone()
    for t in range(40):
        token = kv[t : t + 1], score[t : t + 1]
        _append(HCA, found, token, [1], [256 + t], reverse=reverse)
        cpu.state_append(HCA, expected, *token, torch.tensor([1]), torch.tensor([256 + t]))
    assert torch.equal(found[:, 0], expected[:, 0])  # a maximum is exact
    torch.testing.assert_close(found[:, 1:], expected[:, 1:], rtol=1e-5, atol=1e-5)
