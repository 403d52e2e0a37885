"""Decoding to float32, against the codec that is exact."""

import pytest
import torch

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import cpu
from dsv4kv.ops.cpu_decode import Decoder
from dsv4kv.ops.storage import PageStore
from tests.ops.samples import each_entry, generator, poisoned_store, random_values, read_entries


def filled(entry: EntryFormat) -> PageStore:
    store = poisoned_store(entry, 32, 4)
    cpu.entry_insert(store, random_values(entry, 128, seed=1), torch.arange(128))
    return store


@each_entry
def test_entries_are_decoded_exactly(entry: EntryFormat) -> None:
    store = filled(entry)
    decoder = Decoder(store, 100)
    chosen = torch.randperm(128, generator=generator(2))
    for piece in (chosen[:100], chosen[100:], chosen[:1], chosen[:0]):
        found = decoder.entries(piece)
        assert torch.equal(found, read_entries(store, piece.tolist()).float().view(-1, entry.dims))


@each_entry
def test_pages_are_decoded_entry_by_entry(entry: EntryFormat) -> None:
    store = filled(entry)
    decoder = Decoder(store, 96)
    found = decoder.pages(torch.tensor([2, 0, 3]))
    physical = [*range(64, 96), *range(32), *range(96, 128)]
    assert torch.equal(found, read_entries(store, physical).float())


@pytest.mark.parametrize("value", ["e4m3", "e2m1"])
def test_every_code_by_every_scale_is_decoded_exactly(value: str) -> None:
    entry = EntryFormat("all", value, 512, group=32, scale="ue8m0")  # type: ignore[arg-type]
    store = poisoned_store(entry, 32, 8)
    codes = torch.arange(256, dtype=torch.uint8)
    codes[codes & 127 == 127] = 0  # NaN of e4m3
    data = codes.repeat(256, entry.value_bytes // 256)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, 16).contiguous()
    store.write(torch.arange(256), data, scales)
    physical = torch.arange(0, 255)  # the last is infinite times some
    decoder = Decoder(store, 255)
    found = decoder.entries(physical)
    expected = read_entries(store, physical.tolist())
    usual = slice(20, 240)  # beyond, bf16 or float32 end
    assert torch.equal(found[usual], expected[usual].float())
