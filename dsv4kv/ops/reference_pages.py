"""What the literal operations share: entries in their pages, and the Hadamard rotation."""

import math

import torch
from torch import Tensor

from dsv4kv.ops import reference_codec
from dsv4kv.ops.storage import PageStore


def rotate(values: Tensor) -> Tensor:
    """Rotate [n, d] or [d] by the Sylvester-Hadamard matrix over sqrt(d), rounded to bf16."""
    matrix = torch.ones(1, 1, dtype=values.dtype)
    while matrix.shape[0] < values.shape[-1]:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (values @ matrix / math.sqrt(values.shape[-1])).bfloat16()


def write(store: PageStore, entry: int, values: Tensor) -> None:
    """Encode values [D] into a physical entry."""
    contents = reference_codec.encode(store.layout.format, values.float().tolist())
    page, parts = _parts_of(store, entry)
    for offsets, content in zip(parts, contents, strict=True):
        page[offsets] = torch.tensor(list(content), dtype=torch.uint8)


def read_bytes(store: PageStore, entry: int) -> tuple[bytes, bytes]:
    """The bytes of a physical entry: values and tail, and scales."""
    page, (data, scales) = _parts_of(store, entry)
    return bytes(page[data].tolist()), bytes(page[scales].tolist())


def _parts_of(store: PageStore, entry: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The page of a physical entry, and where its values and tail and its scales are in it."""
    number, row = divmod(entry, store.layout.entries)
    layout, form = store.layout, store.layout.format
    start = layout.data_offset(row)
    values = start + torch.arange(form.value_bytes)
    tail = start + form.tail_start + torch.arange(form.tail_bytes)
    scales = layout.scale_offset(row) + torch.arange(form.scale_bytes)
    return store.pages[number], (torch.cat([values, tail]), scales)


def read(store: PageStore, entry: int) -> Tensor:
    """A physical entry as it is read: bf16[D]."""
    values = reference_codec.decode(store.layout.format, *read_bytes(store, entry))
    return torch.tensor(values, dtype=torch.float64).bfloat16()
