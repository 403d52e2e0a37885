"""Inserting entries: by ring position and by physical index."""

from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops import cpu, reference
from tests.examples import examples
from tests.ops.samples import (
    POISON,
    SMALL,
    each_backend,
    each_entry,
    generator,
    poisoned_store,
    random_values,
    read_entries,
    twin,
)

RINGS = [128, 128 + 3]  # with and without rows for draft tokens
SLOTS = 3

each_ring = pytest.mark.parametrize("ring_length", RINGS)


@st.composite
def tokens_of_slots(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Slots (−1 among them) and positions, distinct in a slot, many of which share a ring row."""
    position = st.builds(lambda turn, row: turn * 128 + row, st.integers(0, 3), st.integers(0, 6))
    tokens = draw(
        st.lists(st.tuples(st.integers(-1, SLOTS - 1), position), max_size=40, unique=True)
    )
    return [slot for slot, _ in tokens], [position for _, position in tokens]


@each_backend
@each_ring
@examples(150)
@given(tokens_of_slots())
def test_highest_position_of_a_slot_wins_its_ring_row(
    backend: ModuleType, ring_length: int, tokens: tuple[list[int], list[int]]
) -> None:
    slots, positions = tokens
    ring = poisoned_store(SMALL, ring_length, SLOTS)
    values = torch.arange(1, len(slots) + 1)[:, None].expand(-1, 8).bfloat16()
    backend.window_insert(ring, values, torch.tensor(slots).long(), torch.tensor(positions).long())
    winners: dict[tuple[int, int], int] = {}
    for t in sorted(range(len(slots)), key=lambda t: positions[t]):
        winners[slots[t], positions[t] % ring_length] = t
    expected = poisoned_store(SMALL, ring_length, SLOTS)
    for (slot, row), t in winners.items():
        if slot >= 0:
            expected.pages[slot].view(torch.bfloat16)[row * 8 : row * 8 + 8] = t + 1
    assert torch.equal(ring.pages, expected.pages)


@each_ring
@pytest.mark.parametrize("name", FORMATS["window"])
def test_window_insert_equals_the_reference(name: str, ring_length: int) -> None:
    entry = FORMATS["window"][name]
    ring = poisoned_store(entry, ring_length, SLOTS)
    other = twin(ring)
    values = random_values(entry, 12, seed=1)
    slots = torch.tensor([2, 2, 0, -1, 2, 0, 0, 1, -1, 1, 2, 0])
    positions = torch.tensor([127, 255, 5, 9, 131, 133, 136, 0, 7, 1_048_575, 128, 261])
    cpu.window_insert(ring, values, slots, positions)
    reference.window_insert(other, values, slots, positions)
    assert torch.equal(ring.pages, other.pages)


@each_entry
def test_entry_insert_equals_the_reference(entry: EntryFormat) -> None:
    store, values = poisoned_store(entry), random_values(entry, 10, seed=4)
    other = twin(store)
    entries = torch.randperm(store.num_entries, generator=generator(4))[:10]
    entries[[2, 7]] = -1
    cpu.entry_insert(store, values, entries)
    reference.entry_insert(other, values, entries)
    assert torch.equal(store.pages, other.pages)


@each_backend
@pytest.mark.parametrize("nowhere", [-1, -96, 96, 97, 2**40])
def test_entries_outside_the_store_are_skipped(backend: ModuleType, nowhere: int) -> None:
    store = poisoned_store(SMALL)
    values = torch.tensor([1.0, 2.0, 3.0])[:, None].expand(-1, 8).bfloat16()
    backend.entry_insert(store, values, torch.tensor([nowhere, 95, nowhere]))
    assert read_entries(store, [95])[0].tolist() == [2.0] * 8
    store.pages[2, 31 * 16 : 32 * 16] = POISON
    assert bool((store.pages == POISON).all())


@each_backend
def test_inserting_nothing_changes_nothing(backend: ModuleType) -> None:
    store, none = poisoned_store(SMALL), torch.empty(0, dtype=torch.int64)
    backend.entry_insert(store, torch.empty(0, 8).bfloat16(), none)
    backend.window_insert(store, torch.empty(0, 8).bfloat16(), none, none)
    backend.indexer_insert(store, torch.empty(0, 8).bfloat16(), none, True)
    assert bool((store.pages == POISON).all())


@each_backend
def test_more_entries_than_fit_in_cache_at_once_all_arrive(backend: ModuleType) -> None:
    store = poisoned_store(SMALL, entries=2048, pages=3)
    values = (torch.arange(6144) % 251)[:, None].expand(-1, 8).bfloat16()
    backend.entry_insert(store, values, torch.arange(6144).flip(0))
    assert torch.equal(store.pages.view(torch.bfloat16).view(6144, 8), values.flip(0))
