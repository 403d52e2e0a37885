"""Inserts on the CPU twin: every byte of every page is the CPU backend's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops import cpu
from dsv4kv.ops.kernels.insert import plan_entry_insert, plan_window_insert
from tests.examples import examples
from tests.kernels.launches import TINY, each_order, on_blocks
from tests.kernels.shim.twin import run
from tests.ops.samples import each_entry, generator, poisoned_store, random_values, twin

MAIN = FORMATS["main"]["fp8_ds_mla"]
SLOTS = 3


@each_order
@each_entry
def test_entries_become_the_bytes_of_the_cpu_backend(entry: EntryFormat, reverse: bool) -> None:
    # Pages are poisoned: what lies between and beside the entries is compared as well.
    store, values = poisoned_store(entry), random_values(entry, 40, seed=2)
    expected = twin(store)
    entries = torch.randperm(store.num_entries, generator=generator(2))[:40]
    entries[[3, 7, 8, 9]] = torch.tensor([-1, 96, -(2**40), 2**62])
    cpu.entry_insert(expected, values, entries)
    run(on_blocks(plan_entry_insert(store, values, entries), 2), reverse=reverse)
    assert torch.equal(store.pages, expected.pages)


@pytest.mark.parametrize("per_page", [1, 2, 32, 64])
def test_pages_of_any_number_of_entries_are_written(per_page: int) -> None:
    store, values = poisoned_store(MAIN, per_page), random_values(MAIN, 3, seed=3)
    expected, entries = twin(store), torch.tensor([store.num_entries - 1, 0, 1])
    cpu.entry_insert(expected, values, entries)
    run(plan_entry_insert(store, values, entries))
    assert torch.equal(store.pages, expected.pages)


@each_order
@pytest.mark.parametrize("name", FORMATS["window"])
def test_prompt_chunks_and_single_tokens_share_a_call(name: str, reverse: bool) -> None:
    # Slot 2 brings a prompt of two and a half rings, slot 0 wraps around, slot 1 has one token.
    entry, ring_length = FORMATS["window"][name], 11
    if entry.page_align > 1:
        ring_length = 32
    chunks = [(2, 7, ring_length * 5 // 2), (0, ring_length - 2, 5), (-1, 3, 2), (1, 1_048_575, 1)]
    slots = torch.cat([torch.full((count,), slot) for slot, _, count in chunks])
    positions = torch.cat([torch.arange(first, first + n) for _, first, n in chunks])
    ring, values = poisoned_store(entry, ring_length), random_values(entry, len(slots), seed=4)
    expected = twin(ring)
    cpu.window_insert(expected, values, slots, positions)
    run(on_blocks(plan_window_insert(ring, values, slots, positions), 2), reverse=reverse)
    assert torch.equal(ring.pages, expected.pages)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Consecutive tokens of each slot, slots in any order, padding tokens anywhere between."""
    slots: list[int] = []
    positions: list[int] = []
    for slot in draw(st.permutations(range(SLOTS))):
        first, count = draw(st.integers(0, 40)), draw(st.integers(0, 30))
        padding = draw(st.integers(0, 2))
        slots += [slot] * count + [-1] * padding
        positions += [*range(first, first + count), *[first] * padding]
    return slots, positions, draw(st.sampled_from([1, 4, 11]))


@examples(150)
@given(steps(), st.booleans())
def test_highest_position_of_a_slot_wins_its_ring_row(
    step: tuple[list[int], list[int], int], reverse: bool
) -> None:
    slots, positions, ring_length = step
    ring = poisoned_store(TINY, ring_length, SLOTS)
    expected = poisoned_store(TINY, ring_length, SLOTS)
    values = torch.arange(1, len(slots) + 1)[:, None].expand(-1, 16).bfloat16().contiguous()
    arguments = values, torch.tensor(slots).long(), torch.tensor(positions).long()
    run(plan_window_insert(ring, *arguments), reverse=reverse)
    for t, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        if slot >= 0:
            row = position % ring_length
            expected.pages[slot].view(torch.bfloat16)[row * 16 : row * 16 + 16] = t + 1
    assert torch.equal(ring.pages, expected.pages)


def test_tokens_of_another_slot_replace_nothing() -> None:
    # Token i + 4 has the position that would replace token i, were it of the same slot.
    ring, values = poisoned_store(TINY, 4, SLOTS), random_values(TINY, 8, seed=5)
    expected, slots = twin(ring), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    cpu.window_insert(expected, values, slots, torch.arange(8))
    run(plan_window_insert(ring, values, slots, torch.arange(8)))
    assert torch.equal(ring.pages, expected.pages)


@pytest.mark.parametrize(("slot", "position"), [(-1, 0), (SLOTS, 0), (2**62, 5), (0, -1)])
def test_tokens_without_a_place_are_skipped(slot: int, position: int) -> None:
    ring = poisoned_store(MAIN, 32, SLOTS)
    expected, values = twin(ring), random_values(MAIN, 2, seed=6)
    slots, positions = torch.tensor([slot, 1]), torch.tensor([position, 33])
    cpu.window_insert(expected, values[1:], slots[1:], positions[1:])
    run(plan_window_insert(ring, values, slots, positions))
    assert torch.equal(ring.pages, expected.pages)


def test_inserting_nothing_changes_nothing() -> None:
    store, none = poisoned_store(MAIN), torch.empty(0, dtype=torch.int64)
    expected, values = twin(store), torch.empty(0, 512).bfloat16()
    run(plan_entry_insert(store, values, none))
    run(plan_window_insert(store, values, none, none))
    assert torch.equal(store.pages, expected.pages)
