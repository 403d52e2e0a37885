"""The data a cache is fed: a function of request, position and whether a draft is rejected."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.serve.inputs import InputBank
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule
from dsv4kv.ops.compressor import Compressor, make_rope, random_compressor

MODEL = load_model("v4-flash")
MAX_CHUNK = 5000  # more than there are distinct tokens
requests = st.integers(0, 10**6)
positions = st.integers(0, 10**6)


def make_compressors() -> list[Compressor]:
    generator = torch.Generator().manual_seed(0)
    csa, hca = build_schedule(MODEL, layers=[2, 3])
    ropes = [make_rope(MODEL, layer.ratio, 128, "float32") for layer in (csa, hca)]
    return [
        random_compressor(MODEL, csa, generator, rope=ropes[0]),
        random_compressor(MODEL, csa, generator, rope=ropes[0], indexer=True),
        random_compressor(MODEL, hca, generator, rope=ropes[1]),
    ]


@pytest.fixture(scope="module")
def bank() -> InputBank:
    return InputBank(MODEL, make_compressors(), MAX_CHUNK, seed=0)


@given(
    request=requests,
    start=positions,
    tokens=st.sampled_from((1, 2, 127, 4098, 4099, 4100, MAX_CHUNK)),
)
def test_a_chunk_is_one_slice_from_the_row_of_its_first_token(
    bank: InputBank, request: int, start: int, tokens: int
) -> None:
    rows = InputBank.rows(request, np.arange(start, start + tokens))
    chunk = slice(int(rows[0]), int(rows[0]) + tokens)
    assert torch.equal(bank.window[chunk], bank.window[torch.from_numpy(rows)])
    kv = bank.every.compressors[256].kv
    assert torch.equal(kv[chunk], kv[torch.from_numpy(rows)])


@given(requests, positions)
def test_what_could_be_mistaken_for_a_token_has_other_data(request: int, position: int) -> None:
    here = np.array([position])
    neighbours = [
        InputBank.rows(request, here + 1),
        InputBank.rows(request, here + 4),  # the next CSA group
        InputBank.rows(request, here + 128),  # the same ring row, a round later
        InputBank.rows(request + 1, here),
        InputBank.rows(request, here, rejected=True),
    ]
    assert InputBank.rows(request, here)[0] not in [int(row[0]) for row in neighbours]
