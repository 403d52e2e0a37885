"""Published vectors of the DeepSeek-V4 reference inference code and of OCP Microscaling 1.0."""

import pytest
import torch

from dsv4kv.model.formats import EntryFormat, entry_format
from dsv4kv.ops import codec as fast_codec
from tests.ops.codecs import Codec, each_codec

FP8_DS_MLA = entry_format("main", "fp8_ds_mla")
FP8_INDEXER = entry_format("indexer", "fp8")
MXFP4 = entry_format("indexer", "mxfp4")
FP4 = entry_format("main", "fp4")

# The last digit of 1.7500001 and 6.0000005 is one float32 step.
FP8_SCALE_BYTES = [
    (0.0, 105),
    (1e-4, 105),
    (0.01, 112),
    (0.5, 118),
    (1.0, 119),
    (1.75, 119),
    (1.75 + 2.0**-23, 120),
    (7.0, 121),
    (10.0, 122),
    (22.6, 123),
    (448.0, 127),
    (449.0, 128),
    (896.0, 128),
]
MXFP4_SCALE_BYTES = [
    (1.0, 125),
    (1.5, 125),
    (3.0, 126),
    (6.0, 127),
    (6.0 + 2.0**-21, 128),
    (12.0, 128),
]


@each_codec
@pytest.mark.parametrize(("amax", "byte"), FP8_SCALE_BYTES)
def test_fp8_scale_is_the_published_power_of_two(codec: Codec, amax: float, byte: int) -> None:
    assert codec.scale_byte(FP8_DS_MLA, amax) == byte


@each_codec
@pytest.mark.parametrize(("amax", "byte"), MXFP4_SCALE_BYTES)
def test_mxfp4_scale_is_the_published_power_of_two(codec: Codec, amax: float, byte: int) -> None:
    assert codec.scale_byte(MXFP4, amax) == byte


@each_codec
@pytest.mark.parametrize(("amax", "scale"), [(448.0, 1.0), (450.0, 2.0), (1.75, 2.0**-8)])
def test_scale_of_an_fp8_indexer_key_is_a_power_of_two_in_fp32(
    codec: Codec, amax: float, scale: float
) -> None:
    _, stored = codec.encode(FP8_INDEXER, _groups(FP8_INDEXER, [amax]))
    expected = torch.tensor([scale]).view(torch.uint8)
    assert list(stored) == expected.tolist()


@each_codec
@pytest.mark.parametrize(
    ("amax", "scale"), [(6.0, 1.0), (7.5, 1.25), (0.0, 2.0**-9), (6.0 * 512, 448.0)]
)
def test_scale_of_v41_fp4_is_the_nearest_e4m3_never_zero(
    codec: Codec, amax: float, scale: float
) -> None:
    _, stored = codec.encode(FP4, _groups(FP4, [amax] * 32))
    decoded = torch.tensor(list(stored), dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert decoded.tolist() == [scale] * 32


@each_codec
def test_low_nibble_is_the_even_element(codec: Codec) -> None:
    data, _ = codec.encode(MXFP4, [1.0, -2.0, 6.0, 0.5] + [0.0] * 124)
    assert list(data[:2]) == [0xC2, 0x17]  # codes 2 and 4 with sign bit 8, codes 7 and 1


@pytest.mark.parametrize(
    ("entry", "error", "tolerance"),
    [(FP8_DS_MLA, 0.0267, 0.0002), (MXFP4, 0.115, 0.001), (FP4, 0.095, 0.002)],
    ids=lambda x: x.name if isinstance(x, EntryFormat) else None,
)
def test_relative_rms_error_on_a_normal_distribution_is_the_published_one(
    entry: EntryFormat, error: float, tolerance: float
) -> None:
    values = torch.randn(2048, entry.dims, generator=torch.Generator().manual_seed(1)).bfloat16()
    decoded = torch.empty_like(values)
    fast_codec.decode(entry, *fast_codec.encode(entry, values), decoded)
    exact, found = values[:, : entry.value_dims].float(), decoded[:, : entry.value_dims].float()
    relative = float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert relative == pytest.approx(error, abs=tolerance)


def _groups(entry: EntryFormat, maxima: list[float]) -> list[float]:
    """An entry whose groups have these maxima, one negative element in each."""
    values = [0.0] * entry.dims
    for group, amax in enumerate(maxima):
        values[group * entry.group + 3] = -amax
    return values
