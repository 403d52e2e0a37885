"""Pages that the engines' own kernels wrote are told by ``inspect``.

Those that they write in torch are ours to the byte; Triton's interpreter rounds to FP8 otherwise
than a GPU does, and SGLang's 4-bit keys round halves down.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from dsv4kv.diagnose.records import candidates, known_records, read_dump, recognise
from dsv4kv.model.formats import FLAT_FORMATS, EntryFormat
from tests.diagnose.dumps.pages import latents, written
from tests.engines.oracles.asking import HERE

PAGE, ROWS, SEED = 64, 256, 3
DIMS = (512, 576, 128)
WRITTEN = {
    "vllm": {"fp8_ds_mla of vllm": "fp8_ds_mla"},
    "sglang": {
        name: name.partition(" ")[0]
        for name in ("fp8_ds_mla", "fp8_ds_mla of V3.2", "fp8_group32", "fp8_group32_interleaved",
                     "fp4", "fp4_interleaved", "fp8", "mxfp4")
    },
}  # fmt: skip
IN_TORCH = {"fp8_group32", "fp8_group32_interleaved", "fp4", "fp4_interleaved"}


def format_of(name: str) -> EntryFormat:
    """The record that an engine's writer writes."""
    if name.endswith("V3.2"):
        return FLAT_FORMATS["fp8_ds_mla"]
    short = name.partition(" ")[0]
    of = "indexer" if short in {"fp8", "mxfp4"} else "main"
    return next(
        entry
        for known, place, entry, usual in known_records()
        if known == short and of in place.split(" and ") and usual
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of all writers of both engines, and the rows that they were given."""
    packages = os.environ.get("DSV4KV_ENGINES")
    if not packages:
        pytest.skip("needs the engines' packages: make engines")
    made = tmp_path_factory.mktemp("pages")
    for dims in DIMS:
        rows = latents(ROWS, dims, SEED).view(torch.uint16)
        np.save(made / f"{dims}.npy", rows.numpy())
    for engine in WRITTEN:
        command = [f"{packages}/bin/python", HERE / "page_writers.py", engine,
                   f"{packages}/{engine}", made]  # fmt: skip
        subprocess.run(list(map(str, command)), check=True)
    return made


@pytest.mark.parametrize("name", [name for names in WRITTEN.values() for name in names])
def test_pages_of_an_engines_own_kernel_are_told(name: str, folder: Path) -> None:
    entry, pages = format_of(name), np.load(folder / f"{name}.npy")
    found = recognise(candidates(read_dump(folder / f"{name}.npy")))
    assert found is not None
    layout = found.record.layout
    assert layout.format == entry
    assert entry.inline_scales or layout.entries == PAGE
    if layout.format.name in IN_TORCH:
        ours = written(entry, PAGE, latents(ROWS, entry.dims, SEED))
        rows = PAGE * entry.entry_bytes
        assert (pages[:, :rows] == ours[:, :rows]).all()
