"""Where bytes lie in a page: FlashMLA's and vLLM's, and of V4.1 and V3.2 SGLang's.

``data/pages_sglang_0_5_23.json`` is what SGLang's own torch references made of ``values``.
"""

import hashlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FLAT_FORMATS, EntryFormat, Place, entry_format
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.storage import PageStore
from tests.ops.samples import POISON, each_backend, nan_output, poisoned_store

FILE = Path(__file__).with_name("data") / "pages_sglang_0_5_23.json"
RECORDED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["formats"]
FORMATS = {name: entry_format("main", name) for name in ("fp8_group32", "fp4")}
FORMATS |= {f"{name}_interleaved": entry_format("main", f"{name}_interleaved") for name in FORMATS}
FORMATS["fp8_ds_mla"] = FLAT_FORMATS["fp8_ds_mla"]
CASES = [
    pytest.param(backend, name, pages, size, id=f"{backend.__name__[11:]}-{name}-{size}")
    for backend, sizes in ((reference, [(1, 2)]), (cpu, [(1, 2), (4, 32), (2, 64)]))
    for name in FORMATS
    for pages, size in sizes
    if f"{pages} × {size}" in RECORDED[name.removesuffix("_interleaved")]["pages"]
]
each_case = pytest.mark.parametrize(("backend", "name", "pages", "size"), CASES)


@each_case
def test_pages_are_those_of_sglang(backend: ModuleType, name: str, pages: int, size: int) -> None:
    store = store_of(name, pages, size)
    backend.entry_insert(store, values(name, pages * size), torch.arange(pages * size))
    inline = FORMATS[name].inline_scales
    arrangement, theirs = "interleaved" if inline else "block_split", recorded(name, pages, size)
    assert store.pages.shape[1] == theirs["page_bytes"][inline]
    if arrangement in theirs:
        assert content(store.pages).hex() == theirs[arrangement]
    assert sha256(store.pages) == theirs[f"{arrangement}_sha256"]


@each_case
def test_their_pages_read_as_they_read_them(
    backend: ModuleType, name: str, pages: int, size: int
) -> None:
    store, count = store_of(name, pages, size), pages * size
    cpu.entry_insert(store, values(name, count), torch.arange(count))
    out = nan_output(1, count, FORMATS[name].dims)
    table = torch.arange(pages, dtype=torch.int32)[None]
    backend.gather_all(store, table, torch.tensor([0]), torch.tensor([count]), out)
    assert sha256(out) == recorded(name, pages, size)["read_sha256"]


def recorded(name: str, pages: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = RECORDED[name.removesuffix("_interleaved")]["pages"]
    page: dict[str, Any] = found[f"{pages} × {size}"]
    return page


def store_of(name: str, pages: int, size: int) -> PageStore:
    """Poisoned, and zeros where a page holds nothing, as theirs does."""
    entry: EntryFormat = FORMATS[name]
    store = poisoned_store(entry, size, pages)
    store.pages[:, size * entry.entry_bytes :] = 0
    return store


def values(name: str, entries: int) -> Tensor:
    """bf16[entries, D] as the recording has them: groups of 16 that differ in size."""
    row = RECORDED[name.removesuffix("_interleaved")]
    (low, high), dims = row["exponents"], row["dims"]
    channel = torch.arange(entries * dims)
    mixed = (channel * 40503 + 12345) % 2**16
    exponent = low + channel // 16 * 7 % (high - low) + (mixed >> 8) % 5
    bits = (mixed & 1) << 15 | (127 + exponent) << 7 | (mixed >> 1) & 0x7F
    bits = torch.where(bits >= 2**15, bits - 2**16, bits)
    return bits.to(torch.int16).view(torch.bfloat16).view(entries, dims)


def content(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


def sha256(tensor: Tensor) -> str:
    return hashlib.sha256(content(tensor)).hexdigest()


# ---- without a recording ----------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("place", "name", "entries"), [("indexer", "mxfp4", 8), ("indexer", "fp8", 16)]
)
def test_page_that_is_no_whole_number_of_rows_is_refused(
    place: Place, name: str, entries: int
) -> None:
    # Its second page would start in the middle of a row: entries would land on scales.
    with pytest.raises(ConfigError, match=f"a page of {entries} {name} entries has"):
        poisoned_store(entry_format(place, name), entries)
