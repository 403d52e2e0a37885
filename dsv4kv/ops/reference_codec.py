"""One entry to bytes and back, value by value: slow and literal, the oracle of every codec.

All arithmetic is exact (Python floats are float64) except where a format prescribes float32.
Sources: DeepSeek-V4 reference inference code (quantisation by groups, power-of-two scales),
OCP Microscaling Formats 1.0 (E4M3, E2M1, E8M0).
"""

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence

from dsv4kv.model.formats import EntryFormat

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e4m3(code: int) -> float:
    exponent, mantissa = code >> 3, code & 7
    if exponent == 0:
        return math.ldexp(mantissa, -9)
    return math.ldexp(8 + mantissa, exponent - 10)


E4M3 = tuple(_e4m3(code) for code in range(127))  # 127 is NaN

_GRID = {"e4m3": E4M3, "e2m1": E2M1}

# Smallest group maximum, so that an all-zero group has a finite scale. 1e-4 is the reference
# code's choice for FP8 (FlashMLA floors the scale instead, TensorRT-LLM uses 1e-8); for FP4 it is
# the smallest maximum whose power-of-two scale is a normal float32.
AMAX_FLOOR = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}


SMALLEST_NORMAL = 2.0**-126
"""Of float32: the smallest scale that is stored as it is (vLLM)."""


def fl32(value: float) -> float:
    """Round to float32, nearest even."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def round_to_grid(value: float, grid: Sequence[float]) -> int:
    """Code of the grid value nearest to |value|; ties go to the even code, overflow saturates."""
    size = abs(value)
    above = bisect_left(grid, size)
    if above == len(grid):
        return above - 1
    if above == 0 or grid[above] == size:
        return above
    down, up = size - grid[above - 1], grid[above] - size
    if down == up:
        return above if above % 2 == 0 else above - 1
    return above if up < down else above - 1


def power_of_two_exponent(amax: float, largest: float) -> int:
    """ceil(log2(amax · fl32(1 / largest))), the product rounded to float32."""
    mantissa, exponent = math.frexp(fl32(amax * fl32(1.0 / largest)))
    return exponent - 1 if mantissa == 0.5 else exponent


def encode(entry: EntryFormat, values: Sequence[float]) -> tuple[bytes, bytes]:
    """Encode values of one entry to (values and tail, scales), in float32 if they are not bf16."""
    if entry.value == "bf16":
        return _bf16_bytes(values), b""
    step = entry.group or entry.value_dims
    codes, scales = bytearray(), bytearray()
    for start in range(0, entry.value_dims, step):
        group = values[start : start + step]
        scale, stored = _scale(entry, group)
        codes += bytes(_code(fl32(value / scale), entry.value) for value in group)
        scales += stored
    scales += bytes(entry.scale_padding)
    data = _nibbles(codes) if entry.value == "e2m1" else bytes(codes)
    return data + _bf16_bytes(values[entry.value_dims :]), bytes(scales)


def decode(entry: EntryFormat, data: bytes, scales: bytes) -> list[float]:
    """Decode what ``encode`` gives to the values that are read: exact, or rounded to bf16."""
    if entry.value == "bf16":
        return _bf16_values(data)
    values = []
    for i in range(entry.value_dims):
        if entry.value == "e2m1":
            code = data[i // 2] >> 4 if i % 2 else data[i // 2] & 15
            sign, size = code >> 3, E2M1[code & 7]
        else:
            sign, size = data[i] >> 7, E4M3[data[i] & 127]
        scale = _stored_scale(entry, scales, i // entry.group) if entry.group else 1.0
        values.append((-size if sign else size) * scale)
    if entry.scale == "amax_fp32":
        values = _bf16_values(_bf16_bytes(values))
    return values + _bf16_values(data[entry.value_bytes :])


def decode_scales(entry: EntryFormat, scales: bytes) -> list[float]:
    """What the values of each group are multiplied by; one 1 without scales."""
    groups = range(entry.groups)
    return [_stored_scale(entry, scales, group) for group in groups] or [1.0]


def _scale(entry: EntryFormat, group: Sequence[float]) -> tuple[float, bytes]:
    if entry.scale == "none":
        return 1.0, b""
    if entry.scale == "amax_fp32":
        scale = max(fl32(max(map(abs, group)) / 448.0), SMALLEST_NORMAL)
        return scale, struct.pack("<f", scale)
    amax = max(AMAX_FLOOR[entry.value], *(abs(value) for value in group))
    largest = _GRID[entry.value][-1]
    if entry.scale == "e4m3":
        code = max(round_to_grid(fl32(amax * fl32(1.0 / largest)), E4M3), 1)
        return E4M3[code], bytes([code])
    exponent = power_of_two_exponent(amax, largest)
    stored = struct.pack("<f", 2.0**exponent) if entry.scale == "fp32" else bytes([exponent + 127])
    return 2.0**exponent, stored


def _stored_scale(entry: EntryFormat, scales: bytes, group: int) -> float:
    if entry.scale in ("fp32", "amax_fp32"):
        return float(struct.unpack_from("<f", scales, 4 * group)[0])
    code = scales[group]
    return E4M3[code] if entry.scale == "e4m3" else 2.0 ** (code - 127)


def _code(value: float, kind: str) -> int:
    sign = math.copysign(1.0, value) < 0
    sign_bit = 8 if kind == "e2m1" else 128
    return round_to_grid(value, _GRID[kind]) | (sign_bit if sign else 0)


def _nibbles(codes: Sequence[int]) -> bytes:
    return bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))


def _bf16_bytes(values: Sequence[float]) -> bytes:
    """bf16 is the upper half of a float32, rounded to nearest even."""
    words = (struct.unpack("<I", struct.pack("<f", value))[0] for value in values)
    return b"".join(struct.pack("<I", word + 0x7FFF + (word >> 16 & 1))[2:] for word in words)


def _bf16_values(data: bytes) -> list[float]:
    words = [data[i : i + 2] for i in range(0, len(data), 2)]
    return [float(struct.unpack("<f", b"\0\0" + word)[0]) for word in words]
