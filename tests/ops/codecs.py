"""The two codecs behind one signature, an entry at a time, so that a test can run on both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import codec, reference_codec


def _fast_encode(entry: EntryFormat, values: Sequence[float]) -> tuple[bytes, bytes]:
    data, scales = codec.encode(entry, torch.tensor([values], dtype=torch.bfloat16))
    return bytes(data[0].tolist()), bytes([] if scales is None else scales[0].tolist())


def _fast_decode(entry: EntryFormat, data: bytes, scales: bytes) -> list[float]:
    rows = [torch.tensor([list(part)], dtype=torch.uint8) for part in (data, scales)]
    out = torch.full((1, entry.dims), torch.nan, dtype=torch.bfloat16)
    codec.decode(entry, rows[0], rows[1] if scales else None, out)
    return [float(value) for value in out[0]]


def _fast_scale_byte(entry: EntryFormat, amax: float) -> int:
    group = torch.zeros(1, 1, entry.group)
    group[0, 0, 1] = -amax
    _, scales = codec._scales(entry, group)
    assert scales is not None
    return int(scales[0, 0])


def _reference_scale_byte(entry: EntryFormat, amax: float) -> int:
    values = [0.0] * entry.dims
    values[1] = -reference_codec.fl32(amax)
    return reference_codec.encode(entry, values)[1][0]


@dataclass(frozen=True)
class Codec:
    """Encoding and decoding of one entry.

    ``scale_byte`` gives the scale of a group with a float32 maximum, which need not be a bf16.
    """

    encode: Callable[[EntryFormat, Sequence[float]], tuple[bytes, bytes]]
    decode: Callable[[EntryFormat, bytes, bytes], list[float]]
    scale_byte: Callable[[EntryFormat, float], int]


REFERENCE = Codec(reference_codec.encode, reference_codec.decode, _reference_scale_byte)
FAST = Codec(_fast_encode, _fast_decode, _fast_scale_byte)

each_codec = pytest.mark.parametrize("codec", [REFERENCE, FAST], ids=["reference", "fast"])
