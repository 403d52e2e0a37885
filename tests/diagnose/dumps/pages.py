"""Pages as engines have them: normalised latents with RoPE, written by our own codec."""

import numpy as np
import torch
from torch import Tensor

from dsv4kv.diagnose.records import Bytes, Record
from dsv4kv.model.config import inverse_frequencies
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.presets import load_model
from dsv4kv.ops import cpu
from dsv4kv.ops.storage import PageStore
from tests.ops.samples import generator

FLASH = load_model("v4-flash")


def latents(
    count: int, dims: int, seed: int, *, heavy: bool = False, size: float = 1.0, ratio: int = 4
) -> Tensor:
    """Normalised rows, their last 64 channels of one direction and turned: bf16[count, dims]."""
    random = generator(seed)
    rows = torch.randn(count, dims, generator=random)
    if heavy:
        rows *= torch.randn(count, dims, generator=random).abs() ** 3
    rows /= rows.pow(2).mean(dim=1, keepdim=True).sqrt()
    tail = rows[:, -64:] * 0.5 + torch.randn(64, generator=random)
    speeds = torch.tensor(inverse_frequencies(FLASH, ratio, "float32"))
    turns = torch.polar(torch.ones(1), torch.arange(count)[:, None] * max(ratio, 1) * speeds)
    turned = torch.view_as_complex(tail.reshape(count, 32, 2)) * turns
    rows[:, -64:] = torch.view_as_real(turned).reshape(count, 64)
    return (rows * size).bfloat16()


def written(entry: EntryFormat, page_entries: int, rows: Tensor) -> Bytes:
    """Whole pages of rows: uint8[N, page bytes]."""
    pages = len(rows) // page_entries
    store = PageStore.allocate(PageLayout(entry, page_entries), pages, torch.device("cpu"))
    store.write(torch.arange(pages * page_entries), *cpu.encode(entry, rows))
    return np.array(store.pages.numpy())


def record_of(entry: EntryFormat, page_entries: int) -> Record:
    return Record(entry.name, "", PageLayout(entry, page_entries))
