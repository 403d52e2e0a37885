"""An indexer's queries: turned, rotated, quantised; their scale is in the weights."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS
from dsv4kv.model.presets import load_model
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.compressor import rope_rows
from tests.ops.samples import each_backend, generator, poisoned_store, read_entries

TOKENS, HEADS, DIMS = 4, 6, 128
POSITIONS = torch.tensor([0, 3, 70_001, 1_048_575])


def inputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    random = generator(seed)
    powers = torch.randint(-9, 9, (TOKENS, HEADS, 1), generator=random)
    queries = torch.randn(TOKENS, HEADS, DIMS, generator=random) * 2.0**powers
    queries[1, 2] = 0
    turns = rope_rows(load_model("v4-flash"), 4, POSITIONS)
    return queries.bfloat16(), torch.randn(TOKENS, HEADS, generator=random), turns


def run(
    backend: ModuleType, seed: int, hadamard: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    queries, weights, turns = inputs(seed)
    out = torch.full((TOKENS, HEADS, DIMS), 0xA5, dtype=torch.uint8)
    out_weights = torch.full((TOKENS, HEADS), torch.nan)
    backend.indexer_query(queries, weights, turns, hadamard, out, out_weights)
    return queries, weights, turns, out, out_weights


def turned(queries: Tensor, turns: Tensor) -> Tensor:
    """Pairs as complex numbers: float64[T, H, D]."""
    angles = torch.complex(*turns.double().chunk(2, dim=1))[:, None]
    pairs = torch.view_as_complex(queries[..., 64:].double().view(TOKENS, HEADS, 32, 2))
    return torch.cat(
        [queries[..., :64].double(), torch.view_as_real(pairs * angles).flatten(-2)], -1
    )


@each_backend
@pytest.mark.parametrize("hadamard", [False, True])
def test_codes_times_their_scale_are_the_rotated_queries(
    backend: ModuleType, hadamard: bool
) -> None:
    queries, weights, turns, out, out_weights = run(backend, 1, hadamard)
    right = turned(queries, turns)
    if hadamard:
        signs = torch.tensor([bin(i & j).count("1") % 2 for i in range(128) for j in range(128)])
        right = right @ (1 - 2 * signs.double().view(128, 128)) / 128**0.5
    scales = out_weights.double() / weights.double() * (HEADS * DIMS) ** 0.5
    found = out.view(torch.float8_e4m3fn).double() * scales[..., None]
    largest = right.abs().amax(dim=-1, keepdim=True)
    # Half a step of e4m3 and of bf16, and of e4m3 by the coarsest scale that the largest allows.
    allowed = right.abs() * (2.0**-4 + 2.0**-8) + largest * (2.0**-9 + 2.0**-15)
    assert ((found - right).abs() <= allowed + 1e-9).all()


@each_backend
def test_a_scale_is_a_power_of_two_that_takes_the_largest_below_448(backend: ModuleType) -> None:
    _, weights, _, out, out_weights = run(backend, 2, False)
    scales = out_weights.double() / weights.double() * (HEADS * DIMS) ** 0.5
    powers = scales.log2()
    assert (powers - powers.round()).abs().max() < 1e-5
    largest = (out & 127).amax(dim=-1)
    largest[1, 2] = 0x7E  # of zeros: whatever its scale
    assert ((largest > 0x75) & (largest <= 0x7E)).all()  # above 224, at most 448


@each_backend
def test_a_query_is_quantised_as_a_key_of_that_vector_is(backend: ModuleType) -> None:
    queries, _, turns, out, _ = run(backend, 3, True)
    keys, store = turned(queries, turns).bfloat16(), poisoned_store(FORMATS["indexer"]["fp8"])
    count = TOKENS * HEADS
    cpu.indexer_insert(store, keys.view(count, DIMS), torch.arange(count), True)
    same = store.data_rows()[store.data_index(torch.arange(count))] == out.view(count, DIMS)
    assert same.float().mean() > 0.999
    assert read_entries(store, [0]).isfinite().all()


def test_the_backends_agree_but_for_sums_on_a_boundary() -> None:
    for hadamard in (False, True):
        mine, right = run(cpu, 4, hadamard), run(reference, 4, hadamard)
        assert torch.equal(mine[4], right[4])
        assert (mine[3] == right[3]).float().mean() > 0.998
