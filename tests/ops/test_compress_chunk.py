"""Compressing a chunk: the fast backend against the reference, which feeds token by token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.model.formats import EntryFormat, entry_format
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.compressor import Compressor
from tests.examples import examples
from tests.ops.samples import (
    POISON,
    bf16_entry,
    fresh_online,
    fresh_ring,
    full_size_compressor,
    poisoned_store,
    random_tokens,
    read_entries,
    small_compressor,
    within_one_step,
)
from tests.ops.streams import Request, partitions

SMALL = {
    "ratio 1": small_compressor(1, overlap=True),  # DeepSeek-V4.1
    "ratio 2": small_compressor(2, overlap=True),
    "ratio 4": small_compressor(4, overlap=True),
    "ratio 8, no overlap": small_compressor(8, overlap=False),
}
FP8_DS_MLA, MXFP4 = entry_format("main", "fp8_ds_mla"), entry_format("indexer", "mxfp4")
FULL_SIZE = {
    "csa": ("csa", "ring", FP8_DS_MLA, [13, 1, 30]),
    "hca": ("hca", "ring", FP8_DS_MLA, [100, 29, 130]),
    "hca online": ("hca", "online", FP8_DS_MLA, [100, 29, 130]),
    "indexer": ("indexer", "ring", MXFP4, [13, 1, 30]),
}

ENTRIES = 128

seeds = st.integers(0, 2**32 - 1)


def _pair(
    compressor: Compressor, count: int, seed: int, entry: EntryFormat, state: str
) -> list[Request]:
    """The same request on the fast backend and on the reference."""
    fresh = fresh_online if state == "online" else fresh_ring
    kv, score = random_tokens(compressor, count, seed)
    return [
        Request(
            compressor,
            fresh(compressor),
            poisoned_store(entry, ENTRIES, pages=1),
            kv,
            score,
            backend=backend,
        )
        for backend in (cpu, reference)
    ]


def _check(fast: Request, slow: Request) -> None:
    """Entries within a step, everything else equal."""
    entries, layout = list(range(fast.fed // fast.compressor.ratio)), fast.store.layout
    if entries:
        found, expected = (read_entries(request.store, entries) for request in (fast, slow))
        rotated = fast.compressor.hadamard
        assert within_one_step(layout.format, found, expected, rotated=rotated)
    unwritten = fast.store.pages[0, layout.data_offset(len(entries)) : layout.scale_start]
    assert bool((unwritten == POISON).all())


@pytest.mark.parametrize("compressor", SMALL.values(), ids=SMALL)
@examples(60)
@given(partitions(4, 20, 4), seeds)
def test_ring_chunks_equal_the_reference(
    compressor: Compressor, sizes: list[int], seed: int
) -> None:
    fast, slow = _pair(compressor, sum(sizes), seed, bf16_entry(compressor), "ring")
    for request in (fast, slow):
        request.feed(("chunk", size) for size in sizes)
    _check(fast, slow)
    assert torch.equal(fast.state, slow.state)


@examples(100)
@given(partitions(8, 30, 4), seeds)
def test_online_chunks_equal_the_reference(sizes: list[int], seed: int) -> None:
    compressor = SMALL["ratio 8, no overlap"]
    fast, slow = _pair(compressor, sum(sizes), seed, bf16_entry(compressor), "online")
    for request in (fast, slow):
        request.feed(("chunk", size) for size in sizes)
    _check(fast, slow)


@pytest.mark.parametrize(("kind", "state", "entry", "sizes"), FULL_SIZE.values(), ids=FULL_SIZE)
def test_full_size_chunks_equal_the_reference_within_a_step(
    kind: str, state: str, entry: EntryFormat, sizes: list[int]
) -> None:
    fast, slow = _pair(full_size_compressor(kind), sum(sizes), 4, entry, state)
    for request in (fast, slow):
        request.feed(("chunk", size) for size in sizes)
    _check(fast, slow)
    if state == "ring":
        assert torch.equal(fast.state, slow.state)


@pytest.mark.parametrize("state", ["ring", "online"])
def test_chunk_of_one_slot_leaves_the_others_alone(state: str) -> None:
    compressor = full_size_compressor("hca")
    fresh = fresh_online if state == "online" else fresh_ring
    states = fresh(compressor, slots=3)
    before = states.clone()
    kv, score = random_tokens(compressor, 130, seed=1)
    store = poisoned_store(bf16_entry(compressor), 1, 1)
    cpu.compress_chunk(compressor, states, kv, score, 1, 0, store, torch.tensor([0]))
    assert torch.equal(states[[0, 2]], before[[0, 2]])
    assert not torch.equal(states[1], before[1])


def test_chunk_writes_to_the_physical_entries_it_is_given() -> None:
    compressor = full_size_compressor("csa")
    kv, score = random_tokens(compressor, 12, seed=2)
    stores = [poisoned_store(FP8_DS_MLA, 2, 4) for _ in range(2)]
    scattered = [6, -1, 1]
    for store, entries in zip(stores, [[0, 1, 2], scattered], strict=True):
        state = fresh_ring(compressor)
        cpu.compress_chunk(compressor, state, kv, score, 0, 0, store, torch.tensor(entries))
    in_order = read_entries(stores[0], [0, 2])
    assert torch.equal(read_entries(stores[1], [6, 1]), in_order)
    assert bool((stores[1].pages[[1, 2]] == POISON).all())
