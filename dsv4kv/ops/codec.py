"""Entries to bytes and back, whole tensors at a time, with torch operations of any device.

Exact: equal to ``reference`` bit for bit. The tricks:

* E4M3 to bf16: sign-extend the byte to 16 bits, shift left by 4, keep sign, exponent and mantissa
  (mask 0x87F0), read as bf16: the value times 2^-120, subnormals included.
* Power-of-two scales: move the exponent field, never call ``log2`` or ``exp2``.
* E2M1 to bf16: one table look-up per byte gives both values.
"""

import functools
import math

import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops.reference import AMAX_FLOOR, E2M1, SMALLEST_NORMAL, fl32

_INVERSE_LARGEST = {"e4m3": fl32(1.0 / 448.0), "e2m1": fl32(1.0 / 6.0)}
_E2M1_EDGES = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True))
_LAST_EDGE = 5.0


def encode(entry: EntryFormat, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """Encode bf16 or float32[n, D] to uint8[n, ·]: values and tail, and scales if there are."""
    if entry.value == "bf16":
        return values.bfloat16().contiguous().view(torch.uint8), None
    n, step = values.shape[0], entry.group or entry.value_dims
    groups = values[:, : entry.value_dims].to(torch.float32, copy=True)
    groups = groups.view(n, entry.value_dims // step, step)
    inverse, scales = _scales(entry, groups)
    if inverse is not None:
        groups = groups.div_(inverse) if entry.scale in _DIVIDE_BY else groups.mul_(inverse)
    codes = _e4m3_codes(groups) if entry.value == "e4m3" else _e2m1_codes(groups)
    data = codes.reshape(n, entry.value_bytes)
    if entry.tail_dims:
        tail = values[:, entry.value_dims :].bfloat16().contiguous().view(torch.uint8)
        data = torch.cat([data, tail], dim=1)
    return data, scales


def decode(entry: EntryFormat, data: Tensor, scales: Tensor | None, out: Tensor) -> None:
    """Decode what ``encode`` gives into out bf16[n, D], which may be a strided view."""
    if entry.value == "bf16":
        out.copy_(data.view(torch.bfloat16))
        return
    n, dims = data.shape[0], entry.value_dims
    if entry.value == "e4m3":
        _decode_e4m3(entry, data[:, : entry.value_bytes], scales, out)
    else:
        pairs = e2m1_pairs(str(data.device)).index_select(0, data.reshape(-1).int())
        groups = pairs.view(torch.bfloat16).view(n, entry.groups, entry.group)
        assert scales is not None  # every e2m1 format has scales
        factor = _scale_values(entry, scales)
        torch.mul(groups, factor, out=out[:, :dims].view(n, entry.groups, entry.group))
    if entry.tail_dims:
        out[:, dims:] = data[:, entry.value_bytes :].view(torch.bfloat16)


def hadamard(values: Tensor) -> Tensor:
    """Rotate bf16[n, d] by Hadamard(d) / sqrt(d) in float32; d is a power of two."""
    n, d = values.shape
    rotated: Tensor = values.float()
    half = 1
    while half < d:
        pairs = rotated.view(n, d // (2 * half), 2, half)
        rotated = torch.stack(
            [pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2
        )
        half *= 2
    return (rotated.view(n, d) / math.sqrt(d)).bfloat16()


def _scales(entry: EntryFormat, groups: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What to multiply (``_DIVIDE_BY``: divide) the groups by, and the stored scale rows."""
    if entry.scale == "none":
        return None, None
    if entry.scale == "amax_fp32":
        scale = groups.abs().amax(dim=-1).div_(448.0).clamp_min_(SMALLEST_NORMAL)
        return scale.unsqueeze(-1), scale.view(torch.uint8)
    amax = groups.abs().amax(dim=-1).clamp_min_(AMAX_FLOOR[entry.value])
    scaled = amax.mul_(_INVERSE_LARGEST[entry.value])
    if entry.scale == "e4m3":
        stored = scaled.clamp_max_(448.0).to(torch.float8_e4m3fn).view(torch.uint8).clamp_min_(1)
        return stored.view(torch.float8_e4m3fn).float().unsqueeze(-1), stored
    # Biased by 127, rounded up: any mantissa bit carries into the exponent field.
    exponent = (scaled.view(torch.int32) + 0x7FFFFF) >> 23
    inverse = ((254 - exponent) << 23).view(torch.float32).unsqueeze(-1)
    if entry.scale == "fp32":
        return inverse, (exponent << 23).view(torch.uint8)
    stored = exponent.to(torch.uint8)
    return inverse, torch.nn.functional.pad(stored, (0, entry.scale_padding))


_DIVIDE_BY = ("e4m3", "amax_fp32")


def _e4m3_codes(groups: Tensor) -> Tensor:
    return groups.clamp_(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def _e2m1_codes(groups: Tensor) -> Tensor:
    size = groups.abs()
    code = (size > _LAST_EDGE).to(torch.uint8)
    for edge, inclusive in _E2M1_EDGES:
        code += size >= edge if inclusive else size > edge
    code |= torch.signbit(groups).to(torch.uint8) << 3
    pairs = code.view(*code.shape[:-1], -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4


def _decode_e4m3(entry: EntryFormat, data: Tensor, scales: Tensor | None, out: Tensor) -> None:
    n, dims, groups = data.shape[0], entry.value_dims, max(entry.groups, 1)
    bits = data.view(torch.int8).to(torch.int16)  # sign-extended
    tiny = bits.bitwise_left_shift_(4).bitwise_and_(-0x7810).view(torch.bfloat16)  # 0x87F0
    target = out[:, :dims].view(n, groups, dims // groups)
    values = tiny.mul_(2.0**120).view(n, groups, dims // groups)
    if scales is None:
        target.copy_(values)
    elif entry.scale == "amax_fp32":
        factor = scales.contiguous().view(torch.float32).unsqueeze(-1)
        target.copy_(values.float().mul_(factor))
    else:
        torch.mul(values, _scale_values(entry, scales), out=target)


def _scale_values(entry: EntryFormat, scales: Tensor) -> Tensor:
    """Scales of bf16-representable value as bf16[n, groups, 1]."""
    used = scales[:, : entry.scale_bytes - entry.scale_padding]
    if entry.scale == "ue8m0":
        # 2^-127 (byte 0) is a bf16 subnormal: exponent field 0, mantissa 2^6.
        bits = used.to(torch.int16).bitwise_left_shift(7).masked_fill_(used == 0, 0x40)
        return bits.view(torch.bfloat16).unsqueeze(-1)
    dtype = torch.float32 if entry.scale == "fp32" else torch.float8_e4m3fn
    return used.contiguous().view(dtype).bfloat16().unsqueeze(-1)


@functools.cache
def e2m1_pairs(device: str) -> Tensor:
    """int32[256]: both bf16 values of every byte, low nibble first."""
    values = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.bfloat16)
    codes = torch.arange(256)
    both = torch.stack([values[codes & 15], values[codes >> 4]], dim=1).contiguous()
    return both.view(torch.int32).view(-1).to(device)
