"""Gathering compressed entries: what is asked for, and nothing else is ever read."""

from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.storage import PageStore
from tests.examples import examples
from tests.ops.samples import (
    NOT_A_NUMBER,
    SMALL,
    each_backend,
    each_entry,
    nan_output,
    poisoned_store,
    random_values,
)

SLOTS, WIDTH, PER_BLOCK = 5, 4, 4
NOWHERE = [-1, 2**31 - 1]  # what an unused place of a table may hold
MOST = WIDTH * PER_BLOCK

small = examples(200)


@dataclass(frozen=True)
class Cache:
    """Three requests' entries; whatever no request owns is NaN, in its pages and out of range."""

    store: PageStore
    table: Tensor
    slots: list[int]
    lengths: list[int]

    def value(self, b: int, index: int) -> float:
        """What entry ``index`` of request ``b`` holds in every channel; 0 if there is none."""
        return float(b * MOST + index + 1) if 0 <= index < self.lengths[b] else 0.0

    def expected(self, indices: list[list[int]]) -> Tensor:
        values = [[self.value(b, index) for index in row] for b, row in enumerate(indices)]
        return torch.tensor(values).view(len(values), -1, 1).expand(-1, -1, 8).bfloat16()


@st.composite
def caches(draw: st.DrawFn) -> Cache:
    slots = draw(st.permutations(range(SLOTS)))[:3]
    lengths = draw(st.lists(st.integers(0, MOST), min_size=3, max_size=3))
    blocks = iter(draw(st.permutations(range(SLOTS * WIDTH))))
    store = poisoned_store(SMALL, PER_BLOCK, SLOTS * WIDTH, NOT_A_NUMBER)
    filler = draw(st.sampled_from(NOWHERE))
    cache = Cache(store, torch.full((SLOTS, WIDTH), filler, dtype=torch.int32), slots, lengths)
    for b, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        for index in range(length):
            place, row = divmod(index, PER_BLOCK)
            if row == 0:
                cache.table[slot, place] = next(blocks)
            page = store.pages[cache.table[slot, place]].view(torch.bfloat16)
            page[row * 8 : row * 8 + 8] = cache.value(b, index)
    return cache


@st.composite
def caches_and_indices(draw: st.DrawFn) -> tuple[Cache, list[list[int]]]:
    """Indices with −1, duplicates and ones beyond the length, even beyond the table."""
    asked = draw(st.integers(0, 12))
    index = st.one_of(st.integers(-1, MOST - 1), st.sampled_from([MOST, 10**6, 2**31 - 1]))
    row = st.lists(index, min_size=asked, max_size=asked)
    return draw(caches()), draw(st.lists(row, min_size=3, max_size=3))


@each_backend
@small
@given(caches_and_indices())
def test_topk_gives_the_valid_entries_and_zeros(
    backend: ModuleType, case: tuple[Cache, list[list[int]]]
) -> None:
    cache, indices = case
    asked = torch.tensor(indices, dtype=torch.int32).view(3, -1)
    out = nan_output(3, asked.shape[1], 8)
    slots, lengths = torch.tensor(cache.slots), torch.tensor(cache.lengths)
    backend.gather_topk(cache.store, cache.table, slots, asked, lengths, out)
    assert torch.equal(out, cache.expected(indices))


@each_backend
@small
@given(caches(), st.integers(0, MOST))
def test_all_gives_every_entry_in_order_and_zeros_after(
    backend: ModuleType, cache: Cache, spare: int
) -> None:
    # More room than the table has places is still to be filled with zeros.
    size = max(cache.lengths) + spare
    out = nan_output(3, size, 8)
    slots, lengths = torch.tensor(cache.slots), torch.tensor(cache.lengths)
    backend.gather_all(cache.store, cache.table, slots, lengths, out)
    assert torch.equal(out, cache.expected([list(range(size))] * 3))


@each_backend
def test_gather_of_no_request_gives_nothing(backend: ModuleType) -> None:
    store, none = poisoned_store(SMALL), torch.empty(0, dtype=torch.int64)
    table, out = torch.zeros(1, 1, dtype=torch.int32), nan_output(0, 4, 8)
    indices = torch.empty(0, 4, dtype=torch.int32)
    backend.gather_topk(store, table, none, indices, none, out)
    backend.gather_all(store, table, none, none, out)
    assert out.shape == (0, 4, 8)


@each_backend
def test_gather_leaves_pages_and_tables_alone(backend: ModuleType) -> None:
    store = poisoned_store(SMALL)
    pages, table = store.pages.clone(), torch.tensor([[1, -1]], dtype=torch.int32)
    indices = torch.tensor([[3, -1, 40]], dtype=torch.int32)
    lengths = torch.tensor([32])
    backend.gather_topk(store, table, torch.tensor([0]), indices, lengths, nan_output(1, 3, 8))
    assert torch.equal(store.pages, pages)
    assert table.tolist() == [[1, -1]]
    assert indices.tolist() == [[3, -1, 40]]


@each_entry
@pytest.mark.parametrize("full", [True, False], ids=["all valid", "some missing"])
def test_gathers_equal_the_reference(entry: EntryFormat, full: bool) -> None:
    store = poisoned_store(entry, pages=4, poison=NOT_A_NUMBER)
    cpu.entry_insert(store, random_values(entry, 64, seed=1), torch.arange(32, 96))
    table = torch.tensor([[2, 1], [1, 2]], dtype=torch.int32)
    slots, lengths = torch.tensor([1, 0]), torch.tensor([64, 64] if full else [64, 35])
    indices = torch.tensor([[0, 63, 31, 31], [34, 33, 32, 1]], dtype=torch.int32)
    if not full:
        indices[0, 2], indices[1, 1] = -1, 35
    chosen = [nan_output(2, 4, entry.dims) for _ in range(2)]
    dense = [nan_output(2, 64, entry.dims) for _ in range(2)]
    for i, backend in enumerate((cpu, reference)):
        backend.gather_topk(store, table, slots, indices, lengths, chosen[i])
        backend.gather_all(store, table, slots, lengths, dense[i])
    assert torch.equal(*chosen)
    assert torch.equal(*dense)


def test_more_entries_than_fit_in_cache_at_once_are_gathered() -> None:
    store = poisoned_store(SMALL, entries=2048, pages=3)
    values = (torch.arange(6144) % 251)[:, None].expand(-1, 8).bfloat16()
    cpu.entry_insert(store, values, torch.arange(6144))
    table, out = torch.tensor([[0, 1, 2]], dtype=torch.int32), nan_output(1, 6144, 8)
    cpu.gather_all(store, table, torch.tensor([0]), torch.tensor([6144]), out)
    assert torch.equal(out[0], values)
