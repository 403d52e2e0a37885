"""Prompt chunks on the CPU twin: however tokens arrive, a ring gives the very same bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.ops import cpu
from dsv4kv.ops.check import is_close
from dsv4kv.ops.launches import Launch
from dsv4kv.ops.launches.pages import plan_compress_chunk
from dsv4kv.ops.reference import read_bytes
from dsv4kv.ops.storage import Compressor
from tests.examples import examples
from tests.kernels.launches import dirty_scratch, run_all
from tests.ops import samples
from tests.ops.operations import TWIN
from tests.ops.streams import Request, partitions

HCA, CSA = samples.full_size_compressor("hca"), samples.full_size_compressor("csa")
COMPRESSORS = {
    "csa": CSA,
    "indexer": samples.full_size_compressor("indexer"),
    "hca": HCA,
    "ratio 1": samples.small_compressor(1, overlap=True, dim=128),  # DeepSeek-V4.1
    "ratio 2": samples.small_compressor(2, overlap=True, dim=128),
}
RINGS = {
    "csa": ("csa", 0, 15),
    "csa with drafts": ("csa", 3, 15),
    "indexer": ("indexer", 0, 15),
    "ratio 1": ("ratio 1", 0, 10),
    "ratio 2": ("ratio 2", 3, 10),
    "hca": ("hca", 0, 5),
    "hca with drafts": ("hca", 3, 5),
}
each_ring = pytest.mark.parametrize(("kind", "drafts", "whole"), RINGS.values(), ids=RINGS)
PAGES = 2  # of 32 entries: more than any of these requests completes

seeds = st.integers(0, 2**32 - 1)


def _request(compressor: Compressor, state: Tensor, count: int, seed: int) -> Request:
    store = samples.poisoned_store(samples.bf16_entry(compressor), pages=PAGES)
    tokens = samples.random_tokens(compressor, count, seed)
    return Request(compressor, state, store, *tokens, backend=TWIN)


def _same(a: Request, b: Request) -> bool:
    return torch.equal(a.store.pages, b.store.pages) and samples.same_bits(a.state, b.state)


def _agree(found: Request, expected: Request) -> bool:
    compressor, count = found.compressor, found.fed // found.compressor.ratio
    entry, rotated = samples.bf16_entry(compressor), compressor.hadamard
    return all(
        is_close(entry, values, read_bytes(expected.store, n), rotated=rotated)
        for n, values in enumerate(samples.read_entries(found.store, list(range(count))))
    )


def _pieces(data: st.DataObject, ratio: int) -> list[tuple[str, int]]:
    """Chunks, and between them a few single tokens."""
    sizes = data.draw(partitions(ratio, 2 * ratio + 12, 4))
    few = [min(size, 3) if i % 2 else size for i, size in enumerate(sizes)]
    return [("append" if i % 2 else "chunk", size) for i, size in enumerate(few)]


@each_ring
def test_tokens_chunks_and_one_prompt_give_equal_pages_and_states(
    kind: str, drafts: int, whole: int
) -> None:
    compressor = COMPRESSORS[kind]

    @examples(whole)
    @given(data=st.data(), seed=seeds)
    def check(data: st.DataObject, seed: int) -> None:
        pieces = _pieces(data, compressor.ratio)
        count = sum(size for _, size in pieces)
        mixed, whole, backend = (
            _request(compressor, samples.fresh_ring(compressor, drafts=drafts), count, seed)
            for _ in range(3)
        )
        backend.backend = cpu
        mixed.feed(pieces)
        for request in (whole, backend):
            request.chunk(count)
        assert _same(mixed, whole)
        assert samples.same_bits(whole.state, backend.state)
        if count >= compressor.ratio:
            assert _agree(whole, backend)

    check()


@examples(10)
@given(data=st.data(), seed=seeds)
def test_online_chunks_are_the_backends_within_rounding(data: st.DataObject, seed: int) -> None:
    pieces = _pieces(data, HCA.ratio)
    pieces.append(("chunk", 1 if (sum(size for _, size in pieces) + 1) % 128 else 2))
    count = sum(size for _, size in pieces)
    found, expected = (_request(HCA, samples.fresh_online(HCA), count, seed) for _ in range(2))
    expected.backend = cpu
    for request in (found, expected):
        request.feed(pieces)
    a, b = found.state[0], expected.state[0]
    assert torch.equal(a[0], b[0])  # a maximum is exact
    torch.testing.assert_close(a[1], b[1], rtol=1e-5, atol=0)
    torch.testing.assert_close(a[2] / a[1], b[2] / b[1], rtol=1e-5, atol=1e-5)
    if count >= 128:
        assert _agree(found, expected)


def _chunk(
    compressor: Compressor, state: Tensor, numbers: list[int], split: int, capacity: int
) -> tuple[tuple[Launch, ...], Tensor]:
    """A chunk in buffers of fixed size, NaN beyond its tokens: (launches, pages)."""
    kv, score = (tokens[:capacity] for tokens in samples.random_tokens(compressor, 400, seed=3))
    if 0 <= numbers[2] <= capacity:
        kv[numbers[2] :], score[numbers[2] :] = torch.nan, torch.nan
    store = samples.poisoned_store(samples.bf16_entry(compressor), pages=1)
    entries = torch.arange(-(-capacity // compressor.ratio))
    launches = plan_compress_chunk(
        compressor,
        state,
        kv,
        score,
        torch.tensor(numbers),
        store,
        entries,
        split=split,
        scratch=dirty_scratch(compressor, len(entries)),
    )
    return launches, store.pages


@pytest.mark.parametrize("state", ["ring", "online"])
@pytest.mark.parametrize(
    "numbers",
    [
        [-1, 0, 128],
        [3, 0, 128],
        [2**40, 0, 128],
        [0, -1, 128],
        [0, -(2**40), 128],
        [0, 0, 0],
        [0, 0, -1],
        [0, 0, 201],
        [0, 0, 2**40],
    ],
    ids=str,
)
def test_a_chunk_that_cannot_be_touches_nothing(state: str, numbers: list[int]) -> None:
    tensor = samples.fresh_online(HCA, 3) if state == "online" else samples.fresh_ring(HCA, 3)
    before = tensor.clone()
    launches, pages = _chunk(HCA, tensor, numbers, 8, 200)
    run_all(launches)
    assert bool((pages == samples.POISON).all())
    assert samples.same_bits(tensor, before)


def test_entries_of_minus_one_and_beyond_the_store_are_skipped() -> None:
    tensor, (kv, score) = samples.fresh_ring(CSA), samples.random_tokens(CSA, 16, seed=2)
    store = samples.poisoned_store(samples.bf16_entry(CSA), pages=1)
    entries = torch.tensor([2, -1, 32, 0])
    chunk = torch.tensor([0, 0, 16])
    run_all(plan_compress_chunk(CSA, tensor, kv, score, chunk, store, entries))
    written = (store.pages.view(32, -1) != samples.POISON).any(dim=1)
    assert written.nonzero().flatten().tolist() == [0, 2]
