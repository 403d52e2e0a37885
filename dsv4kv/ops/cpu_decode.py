"""Pieces of a cache to float32, for matrix products: a piece stays in the processor's cache.

Few passes, none over numbers that are subnormal in float32, which processors are slow with, none
with few numbers to a row.

* E4M3 becomes half precision by moving its bits: sign-extended to 16 bits, shifted left by 7, and
  sign, exponent and mantissa kept. That is 2^-8 of it, which the scale makes up for.
* E2M1: two bytes at a time are looked up, and are four numbers of bf16.
"""

import functools

import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import codec
from dsv4kv.ops.storage import PageStore

_TOO_SMALL = 2.0**8
_SHIFT = 1 << 7  # a product takes a third less time than a shift
_E4M3_BITS = -0x4080  # 0xBF80 of a half-precision number


class Decoder:
    """Decodes entries of a store into a buffer, which the next piece overwrites.

    Attributes:
        page_entries: Entries of a page.
        most: Entries of the largest piece.
        factors: What each entry of the last piece is still to be multiplied by, float32[n]; None
            for nothing.
    """

    def __init__(self, store: PageStore, entries: int, *, apart: bool = False) -> None:
        """``entries`` of a piece, or those of a page; ``apart``: leave a scale of entries out."""
        form, device = store.layout.format, store.pages.device
        self.page_entries = store.layout.entries
        self.most = max(entries, self.page_entries)
        self.factors: Tensor | None = None
        self._apart = apart and form.groups == 1 and not form.tail_dims
        self._store, self._form = store, form
        self._values = torch.empty(self.most, form.dims, device=device)
        self._bits = torch.empty(self.most, form.value_dims, dtype=torch.int16, device=device)
        self._scales = _scales(form).to(device)
        self._quads = _quads(str(device)) if form.value == "e2m1" else None

    def entries(self, physical: Tensor, out: Tensor | None = None) -> Tensor:
        """Physical entries int64[...] as float32[..., D]; into ``out``, if it is given."""
        data, scales = self._store.read(physical.reshape(-1))
        values = self._buffer(physical.shape) if out is None else out
        self._decode(data.view(*physical.shape, data.shape[-1]), scales, values)
        return values

    def pages(self, pages: Tensor) -> Tensor:
        """All entries of pages int64[n], one page after another: float32[n · P, D]."""
        data, scales = self._store.read_pages(pages)
        values = self._buffer(data.shape[:-1])
        self._decode(data, scales, values)
        return values.flatten(0, 1)

    def _buffer(self, rows: torch.Size) -> Tensor:
        return self._values[: rows.numel()].view(*rows, self._form.dims)

    def _decode(self, data: Tensor, scales: Tensor | None, values: Tensor) -> None:
        """Rows uint8[..., row bytes], and of scales uint8[·, scale bytes], to float32[..., D]."""
        form, rows = self._form, data.shape[:-1]
        if form.scale == "amax_fp32":  # its values are rounded to bf16
            assert scales is not None
            decoded = torch.empty(rows.numel(), form.dims, dtype=torch.bfloat16)
            codec.decode(form, _rows(data), _rows(scales), decoded)
            values.copy_(decoded.view(values.shape))
        elif form.value == "bf16":
            values.copy_(data.view(torch.bfloat16))
        else:
            bits = self._bits[: rows.numel()].view(*rows, form.value_dims)
            scaled = values[..., : form.value_dims]
            self._scale(scaled.copy_(self._numbers(data[..., : form.value_bytes], bits)), scales)
            if form.tail_dims:
                tail = data[..., form.value_bytes :].view(torch.bfloat16)
                values[..., form.value_dims :] = tail

    def _numbers(self, codes: Tensor, bits: Tensor) -> Tensor:
        """Codes uint8[..., bytes] as numbers of 16 bits, made in int16[..., values]."""
        if self._quads is not None:
            places = codes.view(torch.uint16).int().view(-1)
            torch.index_select(self._quads, 0, places, out=bits.view(torch.int64).view(-1))
            return bits.view(torch.bfloat16)
        bits.copy_(codes.view(torch.int8)).mul_(_SHIFT).bitwise_and_(_E4M3_BITS)
        return bits.view(torch.float16)

    def _scale(self, values: Tensor, scales: Tensor | None) -> None:
        """Multiply values float32[..., value dims] by their groups' scales uint8[..., bytes]."""
        form = self._form
        if scales is None:
            values.mul_(_TOO_SMALL)  # without scales there is only E4M3
            return
        used = scales[..., : form.scale_bytes - form.scale_padding]
        if form.scale == "fp32":
            factors = used.contiguous().view(torch.float32) * _TOO_SMALL
        else:
            factors = self._scales.index_select(0, used.int().view(-1))
        if self._apart:
            self.factors = factors.view(-1)
        else:
            by_group = (*values.shape[:-1], form.groups)
            values.view(*by_group, form.group).mul_(factors.view(*by_group, 1))


def _rows(data: Tensor) -> Tensor:
    return data.reshape(data.shape[:-1].numel(), data.shape[-1])


@functools.cache
def _quads(device: str) -> Tensor:
    """int64[65536]: all four bf16 values of every two bytes of E2M1."""
    pairs = codec.e2m1_pairs(device)
    both = torch.stack([pairs.repeat(256), pairs.repeat_interleave(256)], dim=1)
    return both.view(torch.int64).view(-1)


def _scales(form: EntryFormat) -> Tensor:
    """What values are multiplied by, for each byte that a scale may be: float32[256]."""
    codes = torch.arange(256, dtype=torch.uint8)
    if form.scale == "e4m3":
        scales = codes.view(torch.float8_e4m3fn).float()
    else:
        scales = torch.exp2(codes.double() - 127).float()
    return scales * _TOO_SMALL if form.value == "e4m3" else scales
