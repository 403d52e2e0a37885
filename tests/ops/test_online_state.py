"""The running softmax (85 times smaller than a ring) gives the same entries, but for rounding."""

from types import ModuleType

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.ops import cpu as compression
from dsv4kv.ops import reference
from tests.examples import examples
from tests.ops.samples import (
    bf16_entry,
    each_backend,
    fresh_online,
    fresh_ring,
    full_size_compressor,
    poisoned_store,
    random_tokens,
    read_entries,
    within_one_step,
)
from tests.ops.streams import Request, partitions

HCA = full_size_compressor("hca")

# Folding 128 tokens in float32 adds up to 128 roundings of 2^-24; sums may cancel, so that the
# error is relative to the largest kv.
TOLERANCE = 1e-5

seeds = st.integers(0, 2**32 - 1)
sizes_of_chunks = partitions(128, 300, 4)
some = examples(40)


def _request(state: Tensor, count: int, seed: int) -> Request:
    store = poisoned_store(bf16_entry(HCA), entries=16, pages=1)
    return Request(HCA, state, store, *random_tokens(HCA, count, seed))


def _close(found: Tensor, expected: Tensor) -> bool:
    error = (found.double() - expected.double()).abs().amax()
    return float(error) <= TOLERANCE * float(expected.abs().amax())


@given(seeds)
@some
def test_streamed_softmax_is_that_of_the_ring_before_rounding(seed: int) -> None:
    online, ring = (_request(state, 128, seed) for state in (fresh_online(HCA), fresh_ring(HCA)))
    online.append(128)
    ring.append(128)
    _, denominator, weighted = online.state[0]
    assert _close(weighted / denominator, reference.pool(ring.state[0, 0], ring.state[0, 1]))


@given(sizes_of_chunks, seeds)
@some
def test_chunked_softmax_is_that_of_the_ring_before_rounding(sizes: list[int], seed: int) -> None:
    kv, score = random_tokens(HCA, sum(sizes), seed)
    states = fresh_online(HCA)[0], fresh_ring(HCA)[0]
    start = 0
    for size in sizes:
        tokens = slice(start, start + size)
        pooled = [
            compression._fold_chunk(HCA, states[0], kv[tokens], score[tokens], start),
            compression._pool_chunk(HCA, states[1], kv[tokens], score[tokens], start),
        ]
        rows = torch.arange(start, start + size)[-128:] % 128
        states[1][0, rows], states[1][1, rows] = kv[tokens][-128:], score[tokens][-128:]
        start += size
        assert len(pooled[0]) == start // 128 - (start - size) // 128
        if len(pooled[0]):
            assert _close(pooled[0], pooled[1])


@given(sizes_of_chunks, seeds)
@some
def test_tokens_and_chunks_give_the_same_entries_within_a_step(
    sizes: list[int], seed: int
) -> None:
    count = sum(sizes)
    streamed, chunked = (_request(fresh_online(HCA), count, seed) for _ in range(2))
    ring = _request(fresh_ring(HCA), count, seed)
    streamed.append(count)
    chunked.feed(("chunk", size) for size in sizes)
    ring.chunk(count)
    entries = list(range(count // 128))
    if entries:
        expected = read_entries(ring.store, entries)
        for request in (streamed, chunked):
            assert within_one_step(
                request.store.layout.format, read_entries(request.store, entries), expected
            )
            rest = request.store.pages.view(16, -1)[len(entries) :]
            assert torch.equal(rest, ring.store.pages.view(16, -1)[len(entries) :])


@given(sizes_of_chunks, seeds)
@some
def test_tokens_and_chunks_leave_the_same_unfinished_group(sizes: list[int], seed: int) -> None:
    sizes[-1] += sum(sizes) % 128 == 0  # a finished group leaves nothing to compare
    count = sum(sizes)
    streamed, chunked = (_request(fresh_online(HCA), count, seed) for _ in range(2))
    streamed.append(count)
    chunked.feed(("chunk", size) for size in sizes)
    a, b = streamed.state[0], chunked.state[0]
    assert torch.equal(a[0], b[0])  # a maximum is exact
    torch.testing.assert_close(a[1], b[1], rtol=TOLERANCE, atol=0)
    assert _close(a[2] / a[1], b[2] / b[1])


@each_backend
def test_a_finished_group_does_not_reach_the_next(backend: ModuleType) -> None:
    kv, score = random_tokens(HCA, 256, seed=1)
    score[:128] += 1e3  # would drown everything after it
    requests = [
        Request(HCA, state, poisoned_store(bf16_entry(HCA), 2, 1), kv, score, backend=backend)
        for state in (fresh_online(HCA), fresh_ring(HCA))
    ]
    for request in requests:
        request.append(256)
    found, expected = (read_entries(request.store, [0, 1]) for request in requests)
    assert within_one_step(bf16_entry(HCA), found, expected)
