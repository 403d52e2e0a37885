"""Pieces of a cache to float32, for matrix products: a piece stays in the processor's cache.

Few passes, none over numbers that are subnormal in float32, which processors are slow with. A code
becomes a half-precision number by moving its bits, as many times too small as its exponents are
biased differently, which the scale makes up for:

* E4M3: sign-extended to 16 bits, shifted left by 7, sign, exponent and mantissa kept: 2^-8 of it.
* E2M1: the same of each nibble: 2^-14 of it. All low nibbles of an entry, then all high ones: even
  channels before odd ones, as ``Decoder.order`` says, for what it is multiplied by.
"""

import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import codec
from dsv4kv.ops.storage import PageStore

_TOO_SMALL = {"e4m3": 2.0**8, "e2m1": 2.0**14}
_E4M3_BITS, _E2M1_BITS = -0x4080, -0x7200  # 0xBF80 and 0x8E00 of a half-precision number


class Decoder:
    """Decodes entries of a store into a buffer, which the next piece overwrites.

    Attributes:
        page_entries: Entries of a page.
        most: Entries of the largest piece.
        order: Channels in the order that they are decoded to, int64[D]; None if as they are.
        factors: What each entry of the last piece is still to be multiplied by, float32[n]; None
            for nothing.
    """

    def __init__(self, store: PageStore, entries: int, *, apart: bool = False) -> None:
        """``entries`` of a piece, or those of a page; ``apart``: leave a scale of entries out."""
        form, device = store.layout.format, store.pages.device
        self.page_entries = store.layout.entries
        self.most = max(entries, self.page_entries)
        self.order = _order(form).to(device) if form.value == "e2m1" else None
        self.factors: Tensor | None = None
        self._apart = apart and form.groups == 1 and not form.tail_dims
        self._store, self._form = store, form
        self._values = torch.empty(self.most, form.dims, device=device)
        self._bits = torch.empty(self.most, form.value_dims, dtype=torch.int16, device=device)
        self._halves = self._bits.view(torch.float16)
        self._scales = _scales(form).to(device)

    def entries(self, physical: Tensor) -> Tensor:
        """Physical entries int64[n] as float32[n, D]."""
        return self._decode(*self._store.read(physical))

    def pages(self, pages: Tensor) -> Tensor:
        """All entries of pages int64[n], one page after another: float32[n · P, D]."""
        return self._decode(*self._store.read_pages(pages))

    def _decode(self, data: Tensor, scales: Tensor | None) -> Tensor:
        """Rows uint8[..., row bytes], and of scales uint8[..., scale bytes]."""
        form, rows = self._form, data.shape[:-1]
        count = rows.numel()
        values = self._values[:count]
        if form.scale == "amax_fp32":  # its values are rounded to bf16
            assert scales is not None
            decoded = torch.empty_like(values, dtype=torch.bfloat16)
            codec.decode(form, _rows(data), _rows(scales), decoded)
            return values.copy_(decoded)
        if form.value == "bf16":
            values.view(*rows, form.dims).copy_(data.view(torch.bfloat16))
            return values
        bits = self._bits[:count].view(*rows, form.value_dims)
        _move_bits(form, data.view(torch.int8)[..., : form.value_bytes], bits)
        target = values[:, : form.value_dims].copy_(self._halves[:count])
        self._scale(target, scales)
        if form.tail_dims:
            tail = data[..., form.value_bytes :].view(torch.bfloat16)
            values.view(*rows, form.dims)[..., form.value_dims :] = tail
        return values

    def _scale(self, values: Tensor, scales: Tensor | None) -> None:
        """Multiply values float32[n, value dims] by their groups' scales uint8[..., bytes]."""
        form = self._form
        if scales is None:
            values.mul_(_TOO_SMALL[form.value])
            return
        used = scales[..., : form.scale_bytes - form.scale_padding]
        if form.scale == "fp32":
            factors = used.contiguous().view(torch.float32) * _TOO_SMALL[form.value]
        else:
            factors = self._scales.index_select(0, used.int().view(-1))
        if self._apart:
            self.factors = factors.view(-1)
        elif form.value == "e4m3":
            factors = factors.view(-1, form.groups, 1)
            values.view(-1, form.groups, form.group).mul_(factors)
        else:
            factors = factors.view(-1, 1, form.groups, 1)
            values.view(-1, 2, form.groups, form.group // 2).mul_(factors)


def _rows(data: Tensor) -> Tensor:
    return data.reshape(data.shape[:-1].numel(), data.shape[-1])


def _move_bits(form: EntryFormat, codes: Tensor, bits: Tensor) -> None:
    """Codes int8[..., bytes] to half-precision numbers, as int16[..., values]."""
    if form.value == "e4m3":
        bits.copy_(codes).bitwise_left_shift_(7).bitwise_and_(_E4M3_BITS)
        return
    low, high = bits.chunk(2, dim=-1)
    low.copy_(codes)
    torch.bitwise_left_shift(low, 5, out=high)
    low.bitwise_left_shift_(12).bitwise_right_shift_(3)
    bits.bitwise_and_(_E2M1_BITS)


def _order(form: EntryFormat) -> Tensor:
    even = torch.arange(0, form.dims, 2)
    return torch.cat([even, even + 1])


def _scales(form: EntryFormat) -> Tensor:
    """What values are multiplied by, for each byte that a scale may be: float32[256]."""
    codes = torch.arange(256, dtype=torch.uint8)
    if form.scale == "e4m3":
        scales = codes.view(torch.float8_e4m3fn).float()
    else:
        scales = torch.exp2(codes.double() - 127).float()
    return scales * _TOO_SMALL.get(form.value, 1.0)
