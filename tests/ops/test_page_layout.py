"""Where bytes lie in a page: interchangeable with FlashMLA, vLLM, SGLang and FlashInfer."""

from types import ModuleType

import pytest
import torch

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import EntryFormat, Place, entry_format
from dsv4kv.ops import reference_codec
from tests.ops.samples import POISON, each_backend, each_entry, poisoned_store, random_values

FP8_DS_MLA = entry_format("main", "fp8_ds_mla")


@each_backend
@pytest.mark.parametrize("entries", [1, 2, 64, 131])
def test_fp8_ds_mla_entry_lies_where_other_engines_put_it(
    backend: ModuleType, entries: int
) -> None:
    store = poisoned_store(FP8_DS_MLA, entries, pages=2)
    row = entries - 1
    backend.entry_insert(store, torch.ones(1, 512).bfloat16(), torch.tensor([entries + row]))
    expected = torch.full_like(store.pages, POISON)
    page = expected[1]
    # 1.0 = 256 · 2^-8: e4m3 code 0x78 in groups with scale byte 119; 1.0 as bf16 is 0x3F80.
    page[row * 576 : row * 576 + 448] = 0x78
    page[row * 576 + 448 : row * 576 + 576 : 2] = 0x80
    page[row * 576 + 449 : row * 576 + 576 : 2] = 0x3F
    scale = entries * 576 + row * 8
    page[scale : scale + 7] = 119
    page[scale + 7] = 0
    assert torch.equal(store.pages, expected)


@each_backend
@each_entry
def test_insert_touches_only_the_bytes_of_its_entry(
    backend: ModuleType, entry: EntryFormat
) -> None:
    store, values = poisoned_store(entry), random_values(entry, 4, seed=2)
    written = [0, 31, 32 + 7, 95]
    backend.entry_insert(store, values, torch.tensor(written))
    expected = torch.full_like(store.pages, POISON)
    for value, index in zip(values.float().tolist(), written, strict=True):
        page, row = divmod(index, 32)
        data, scales = reference_codec.encode(entry, value)
        if entry.inline_scales:
            cut = entry.value_bytes + (entry.tail_bytes if entry.scales_at == "row_end" else 0)
            data, scales = data[:cut] + scales + data[cut:], b""
        start = row * len(data)
        expected[page, start : start + len(data)] = torch.tensor(list(data))
        start = 32 * len(data) + row * len(scales)
        expected[page, start : start + len(scales)] = torch.tensor(list(scales)).byte()
    assert torch.equal(store.pages, expected)


@pytest.mark.parametrize(
    ("place", "name", "entries"), [("indexer", "mxfp4", 8), ("indexer", "fp8", 16)]
)
def test_page_that_is_no_whole_number_of_rows_is_refused(
    place: Place, name: str, entries: int
) -> None:
    # Its second page would start in the middle of a row: entries would land on scales.
    with pytest.raises(ConfigError, match=f"a page of {entries} {name} entries has"):
        poisoned_store(entry_format(place, name), entries)
