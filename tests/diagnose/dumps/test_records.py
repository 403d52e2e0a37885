"""The record of pages is told by their bytes, and other bytes are not taken for one."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from dsv4kv.diagnose.records import Bytes, Dump, candidates, known_records, recognise, unmarked
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import EntryFormat
from tests.diagnose.dumps.pages import latents, written
from tests.examples import FULL
from tests.ops.samples import generator

MARKED = [
    (f"{name} of {of}{'' if usual else ', the other way'}", entry)
    for name, of, entry, usual in known_records()
    if entry.scale != "none"
]
PAGES = (2, 32, 64, 256) if FULL else (2, 32)
KINDS = ({}, {"size": 30.0, "heavy": True}, {"heavy": True}, {"size": 0.03})[: 4 if FULL else 2]


def dump_of(pages: Bytes, *, shaped: bool = True) -> Dump:
    shape = pages.shape if shaped else (pages.size,)
    return Dump(Path("pages.npy"), "", pages.reshape(-1), shape)


def writable(entry: EntryFormat, page_entries: int) -> bool:
    """What this project's own writers write."""
    if entry.scale == "ue8m0x4" or entry.scale_columns > 1 or entry.scale_padding > 1:
        return False
    try:
        written(entry, page_entries, latents(page_entries, entry.dims, 0))
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(("title", "entry"), MARKED, ids=[title for title, _ in MARKED])
def test_every_record_is_told_from_four_pages(title: str, entry: EntryFormat) -> None:
    tried = 0
    for page_entries, (seed, kind) in product(PAGES, enumerate(KINDS)):
        if not writable(entry, page_entries):
            continue
        pages = written(entry, page_entries, latents(4 * page_entries, entry.dims, seed, **kind))
        for shaped in (True, False):
            found = recognise(candidates(dump_of(pages, shaped=shaped)))
            assert found is not None
            layout = found.record.layout
            assert layout.format.entry_bytes == entry.entry_bytes
            assert layout.format.inline_scales == entry.inline_scales
            assert entry.inline_scales or layout.entries == page_entries
            tried += 1
    if not tried:
        pytest.skip(f"nothing here writes {title}")


def others() -> dict[str, Bytes]:
    """Pages of no V4 record, of sizes that V4's have."""
    random = np.random.default_rng(1)
    keys = torch.randn(64, 64, 128, generator=generator(2)).bfloat16()
    mla = torch.randn(64, 64, 576, generator=generator(3)).bfloat16()
    return {
        "random": random.integers(0, 256, (8, 37_440), dtype=np.uint8),
        "random keys": random.integers(0, 256, (8, 64 * 132), dtype=np.uint8),
        "bf16 keys of another model": keys.view(torch.uint8).numpy().reshape(64, -1),
        "bf16 latents of DeepSeek-V3": mla.view(torch.uint8).numpy().reshape(64, -1),
        "int8": random.normal(0, 30, (16, 37_440)).astype(np.int8).view(np.uint8),
        "float32": random.normal(size=(16, 9_360)).astype(np.float32).view(np.uint8),
        "text": np.frombuffer(b"the quick brown fox " * 18_720, np.uint8).reshape(10, -1),
        "zeros": np.zeros((8, 37_440), np.uint8),
    }


@pytest.mark.parametrize("name", others())
@pytest.mark.parametrize("shaped", [True, False])
def test_other_bytes_are_taken_for_no_record(name: str, shaped: bool) -> None:
    assert recognise(candidates(dump_of(others()[name], shaped=shaped))) is None


def test_rows_without_scales_are_only_said_to_be_possible() -> None:
    rows = latents(256, 512, 1)
    dump = Dump(Path("x"), "", rows.view(torch.uint8).numpy().reshape(-1), (4, 64, 1024))
    assert recognise(candidates(dump)) is None
    assert unmarked(dump) == ["bf16 of 512 channels (main and window)"]
    assert candidates(dump, name="bf16")[0].fits == 1.0
