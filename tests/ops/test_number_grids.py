"""The 8-bit and 4-bit numbers themselves, against torch and the OCP specification."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.model.formats import entry_format
from dsv4kv.ops.reference_codec import (
    E2M1,
    E4M3,
    fl32,
    power_of_two_exponent,
    round_to_grid,
)
from tests.examples import examples
from tests.ops.codecs import Codec, each_codec

FP8 = entry_format("main", "fp8")
MXFP4 = entry_format("indexer", "mxfp4")
NAN_CODES = (127, 255)

quick = examples(500)
finite = st.floats(-480, 480, width=32)


def test_e4m3_grid_is_that_of_torch() -> None:
    codes = torch.arange(127, dtype=torch.uint8)
    assert list(E4M3) == codes.view(torch.float8_e4m3fn).double().tolist()


def test_e2m1_grid_is_that_of_ocp_microscaling() -> None:
    assert E2M1 == (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@each_codec
def test_all_e4m3_codes_but_nan_decode_as_in_torch(codec: Codec) -> None:
    codes = [code for code in range(256) if code not in NAN_CODES]
    decoded = codec.decode(FP8, bytes(codes + codes + [0] * 4), b"")
    expected = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn).double().tolist()
    assert decoded[:508] == expected * 2
    assert math.copysign(1.0, decoded[127]) == -1.0  # code 128 is −0


@each_codec
def test_both_nibbles_of_every_byte_decode_to_their_ocp_value(codec: Codec) -> None:
    signed = [*E2M1, *(-value for value in E2M1)]
    for start in range(0, 256, 64):
        row = bytes(range(start, start + 64))
        expected = [signed[nibble] for byte in row for nibble in (byte & 15, byte >> 4)]
        assert codec.decode(MXFP4, row, bytes([127] * 4)) == expected


@quick
@given(finite)
def test_rounding_to_the_e4m3_grid_is_that_of_torch(value: float) -> None:
    code = torch.tensor(abs(value)).clamp(max=448.0).to(torch.float8_e4m3fn).view(torch.uint8)
    assert round_to_grid(value, E4M3) == int(code)


@quick
@given(st.floats(0, 8, width=32))
def test_rounding_to_the_e2m1_grid_is_nearest_and_even_on_ties(value: float) -> None:
    code = round_to_grid(value, E2M1)
    distances = [abs(value - size) for size in E2M1]
    nearest = [i for i in range(8) if distances[i] == min(distances)]
    assert code in nearest
    assert len(nearest) == 1 or code % 2 == 0


@quick
@given(st.floats(2.0**-100, 2.0**100, width=32), st.sampled_from([448.0, 6.0]))
def test_scale_exponent_is_the_least_that_covers_the_maximum(amax: float, largest: float) -> None:
    exponent = power_of_two_exponent(amax, largest)
    product = fl32(amax * fl32(1 / largest))
    assert 2.0 ** (exponent - 1) < product <= 2.0**exponent
