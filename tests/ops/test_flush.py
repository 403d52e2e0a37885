"""Flushing a state into an entry: pooling, RMSNorm, RoPE, Hadamard, quantisation."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat, Place
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.compressor import Compressor
from tests.ops.samples import (
    POISON,
    bf16_entry,
    each_backend,
    fresh_online,
    fresh_ring,
    full_size_compressor,
    poisoned_store,
    random_tokens,
    read_entries,
    twin,
    within_one_step,
)

SLOTS = 4

STATES: list[tuple[str, str, Place]] = [
    ("csa", "ring", "main"),
    ("hca", "ring", "main"),
    ("hca", "online", "main"),
    ("indexer", "ring", "indexer"),
]
CASES = {
    f"{kind}-{state}-{name}": (kind, state, entry)
    for kind, state, place in STATES
    for name, entry in FORMATS[place].items()
}


def _state_of_tokens(
    compressor: Compressor, state: str, slots: int, drafts: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """States whose slots each stand at the end of a group: (state, slots, positions)."""
    tensor = (
        fresh_online(compressor, slots)
        if state == "online"
        else fresh_ring(compressor, slots, drafts)
    )
    ends = [compressor.ratio * (3 * slot + 2) - 1 for slot in range(slots)]
    for slot, end in enumerate(ends):
        kv, score = random_tokens(compressor, compressor.rows, seed=slot)
        where = torch.full((1,), slot), torch.arange(end + 1 - compressor.rows, end + 1)
        for t in range(compressor.rows):
            token = slice(t, t + 1)
            cpu.state_append(
                compressor, tensor, kv[token], score[token], where[0], where[1][token]
            )
    return tensor, torch.arange(slots).flip(0), torch.tensor(ends).flip(0)


@pytest.mark.parametrize(("kind", "state", "entry"), CASES.values(), ids=CASES)
def test_flush_equals_the_reference_within_a_step(
    kind: str, state: str, entry: EntryFormat
) -> None:
    compressor = full_size_compressor(kind)
    tensor, slots, positions = _state_of_tokens(compressor, state, SLOTS)
    stores = [poisoned_store(entry)]
    stores.append(twin(stores[0]))
    entries = torch.tensor([95, 33, 0, 32])
    before = tensor.clone()
    for backend, store in zip((cpu, reference), stores, strict=True):
        backend.flush(compressor, tensor, slots, positions, store, entries)
    found, expected = (read_entries(store, entries.tolist()) for store in stores)
    assert within_one_step(entry, found, expected, rotated=compressor.hadamard)
    assert torch.equal(tensor, before)


@each_backend
@pytest.mark.parametrize("nowhere", [-1, 96])
def test_flush_to_no_entry_writes_nothing(backend: ModuleType, nowhere: int) -> None:
    compressor = full_size_compressor("csa")
    tensor, slots, positions = _state_of_tokens(compressor, "ring", 1)
    store = poisoned_store(FORMATS["main"]["fp8_ds_mla"])
    backend.flush(compressor, tensor, slots, positions, store, torch.tensor([nowhere]))
    assert bool((store.pages == POISON).all())


@pytest.mark.parametrize("kind", ["csa", "hca", "indexer"])
def test_flush_reads_the_same_rows_in_a_ring_with_drafts(kind: str) -> None:
    compressor = full_size_compressor(kind)
    stores = [poisoned_store(bf16_entry(compressor)) for _ in range(2)]
    for drafts, store in zip((0, 3), stores, strict=True):
        tensor, slots, positions = _state_of_tokens(compressor, "ring", SLOTS, drafts)
        cpu.flush(compressor, tensor, slots, positions, store, torch.arange(SLOTS))
    assert torch.equal(stores[0].pages, stores[1].pages)
