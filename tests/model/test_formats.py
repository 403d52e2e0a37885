"""Entries and pages have the bytes and places that kernels of others expect.

Sources: FlashMLA, vLLM, SGLang and FlashInfer for ``fp8_ds_mla`` pages (576-byte data rows, then
8-byte scale rows, rounded up to 576); SGLang 0.5.23 (kernels/ops/attention/dsv4/kv_layout.py) for
both arrangements of DeepSeek-V4.1's 288 and 528 bytes; vLLM 0.33.0 (flashmla_sparse.py) for those
of V3.2.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.model import formats as fm

ENTRY_BYTES = {
    ("main", "fp8_ds_mla"): 584,
    ("main", "bf16"): 1024,
    ("main", "fp8"): 512,
    ("main", "fp4"): 288,
    ("main", "fp8_group32"): 528,
    ("main", "fp8_group32_interleaved"): 528,
    ("main", "fp4_interleaved"): 288,
    ("main", "nvfp4"): 384,
    ("window", "fp8_ds_mla"): 584,
    ("window", "bf16"): 1024,
    ("window", "fp8"): 512,
    ("window", "fp8_group32"): 528,
    ("window", "fp8_group32_interleaved"): 528,
    ("window", "nvfp4"): 384,
    ("indexer", "mxfp4"): 68,
    ("indexer", "fp8"): 132,
    ("indexer", "fp8_ue8m0x4"): 132,
    ("indexer", "bf16"): 256,
}
FORMAT_IDS = [(place, name) for place in fm.FORMATS for name in fm.known_formats(place)]


def test_every_entry_has_its_published_bytes() -> None:
    assert {key: fm.entry_format(*key).entry_bytes for key in FORMAT_IDS} == ENTRY_BYTES


@pytest.mark.parametrize(
    ("name", "entry_bytes"), [("fp8_ds_mla", 656), ("bf16", 1152), ("fp8", 576), ("nvfp4", 352)]
)
def test_a_v32_entry_is_one_row_of_its_published_bytes(name: str, entry_bytes: int) -> None:
    entry = fm.entry_format("main", name, flat=True)
    assert entry.entry_bytes == entry.data_row_bytes == entry_bytes
    assert (entry.scale_row_bytes, entry.dims) == (0, 576)


@pytest.mark.parametrize(("place", "name"), FORMAT_IDS)
@given(data=st.data())
def test_a_page_holds_its_entries_and_less_than_one_alignment_of_padding(
    place: fm.Place, name: str, data: st.DataObject
) -> None:
    entry, entries = fm.entry_format(place, name), data.draw(st.integers(1, 1000))
    layout = fm.PageLayout(entry, entries)
    assert layout.page_bytes % entry.page_align == 0
    assert 0 <= layout.padding_bytes < entry.page_align
    assert layout.scale_offset(entries - 1) + entry.scale_bytes <= layout.page_bytes
    assert layout.page_bytes == entries * entry.entry_bytes + layout.padding_bytes
