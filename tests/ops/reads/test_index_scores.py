"""An indexer's scores, against another formula of them."""

import math
from types import ModuleType

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import cpu
from tests.ops.reads.scenes import Cache, make_cache, relative_error
from tests.ops.samples import each_backend, generator

HEADS, DIMS, SPARE = 5, 128, 6

each_key_format = pytest.mark.parametrize("format_name", FORMATS["indexer"])


def random_query(tokens: int, seed: int) -> tuple[Tensor, Tensor]:
    """Queries e4m3 as uint8[T, HEADS, 128], and weights of either sign."""
    random = generator(seed)
    values = torch.randn(tokens, HEADS, DIMS, generator=random) * 8
    codes = values.to(torch.float8_e4m3fn).view(torch.uint8)
    return codes, torch.randn(tokens, HEADS, generator=random)


def expected(cache: Cache, queries: Tensor, weights: Tensor) -> list[Tensor]:
    """Scores of all that each token sees, float64[length]: torch's own e4m3, one einsum each."""
    values = queries.view(torch.float8_e4m3fn).double()
    return [
        torch.einsum(
            "h,hn->n", weights[t].double(), torch.einsum("hd,nd->hn", values[t], keys).relu()
        )
        for t in range(len(cache.slots))
        for keys in (cache.seen(t),)
    ]


@each_backend
@each_key_format
def test_a_score_sums_what_is_positive_of_every_head(
    backend: ModuleType, format_name: str
) -> None:
    cache = make_cache(FORMATS["indexer"][format_name], seed=1)
    queries, weights = random_query(6, seed=2)
    longest = int(cache.lengths.max())
    out = torch.full((6, longest + SPARE), math.nan)
    backend.index_scores(
        cache.store, cache.table, cache.slots, cache.lengths, queries, weights, None, out
    )
    right = torch.full((6, longest), -math.inf, dtype=torch.float64)
    for t, scores in enumerate(expected(cache, queries, weights)):
        right[t, : len(scores)] = scores
    assert relative_error(out[:, :longest], right) < 1e-5
    assert (out[:, longest:].isnan() | (out[:, longest:] == -math.inf)).all()


@each_backend
@each_key_format
def test_only_the_keys_of_chosen_blocks_are_scored(backend: ModuleType, format_name: str) -> None:
    cache = make_cache(FORMATS["indexer"][format_name], seed=3)
    queries, weights = random_query(6, seed=4)
    rows = [[0, 1], [0, 3, 7], [2, 5, 9, 11], [1, 2, 3, 8], [0], []]
    blocks = torch.full((6, 4), -1, dtype=torch.int32)
    for t, row in enumerate(rows):
        blocks[t, : len(row)] = torch.tensor(row)
    out = torch.full((6, 4 * 8), math.nan)
    backend.index_scores(
        cache.store, cache.table, cache.slots, cache.lengths, queries, weights, blocks, out
    )
    right = torch.full((6, 4, 8), -math.inf, dtype=torch.float64)
    for t, scores in enumerate(expected(cache, queries, weights)):
        for n, block in enumerate(rows[t]):
            found = scores[block * 8 : block * 8 + 8]
            right[t, n, : len(found)] = found
    assert relative_error(out, right.view(6, -1)) < 1e-5


@each_backend
def test_no_token_gives_nothing(backend: ModuleType) -> None:
    cache = make_cache(FORMATS["indexer"]["fp8"], seed=5)
    queries, weights = random_query(0, seed=6)
    none, out = torch.empty(0, dtype=torch.int64), torch.empty(0, 9)
    backend.index_scores(cache.store, cache.table, none, none, queries, weights, None, out)
    assert out.shape == (0, 9)


def test_products_of_others_are_as_exact_as_before() -> None:
    """bf16 units are for factors of bf16: no other product of the process may use them."""
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined] # made at run time
    before = settings.fp32_precision
    cache = make_cache(FORMATS["indexer"]["fp8"], seed=5)
    queries, weights = random_query(6, seed=6)
    out = torch.empty(6, int(cache.lengths.max()))
    cpu.index_scores(
        cache.store, cache.table, cache.slots, cache.lengths, queries, weights, None, out
    )
    assert settings.fp32_precision == before
