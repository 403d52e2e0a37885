"""The codecs: each other, bit for bit, and torch, OCP Microscaling 1.0, DeepSeek's own code."""

import struct
from collections.abc import Sequence
from itertools import cycle, islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.model.formats import EntryFormat, entry_format
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.reference import E2M1, E4M3, fl32, power_of_two_exponent, round_to_grid
from tests.examples import examples
from tests.ops.samples import each_entry, generator, nan_output, same_bits

Pattern = tuple[str, int]

KINDS = ["normal", "positive", "zero", "negative_zero", "outlier", "equal", "ties", "spread"]
patterns = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(-20, 17)), min_size=1, max_size=9
)
seeds = st.integers(0, 2**32 - 1)
few = examples(60)

# Byte 255 is NaN (OCP E8M0) and no encoder writes it; 254 overflows to infinity in both codecs.
SCALE_BYTES = [0, 1, 7, 8, 105, 119, 127, 134, 200, 253, 254]


@each_entry
@few
@given(patterns, seeds)
def test_encoding_equals_the_reference(
    entry: EntryFormat, groups: list[Pattern], seed: int
) -> None:
    values = _entries(entry, groups, seed)
    data, scales = cpu.encode(entry, values)
    expected = [reference.encode(entry, row.tolist()) for row in values.float()]
    assert [bytes(row.tolist()) for row in data] == [row for row, _ in expected]
    stored = [b""] * len(values) if scales is None else [bytes(row.tolist()) for row in scales]
    assert stored == [row for _, row in expected]


@each_entry
@few
@given(st.lists(st.sampled_from(SCALE_BYTES), min_size=1, max_size=7), seeds)
def test_decoding_any_bytes_equals_the_reference(
    entry: EntryFormat, scale_bytes: list[int], seed: int
) -> None:
    _check_decoding(entry, _any_data(entry, 3, seed), _scale_rows(entry, 3, scale_bytes))


def _check_decoding(entry: EntryFormat, data: Tensor, scales: Tensor | None) -> None:
    out = nan_output(len(data), entry.dims)
    cpu.decode(entry, data, scales, out)
    rows = [b""] * len(data) if scales is None else [bytes(row.tolist()) for row in scales]
    expected = [
        reference.decode(entry, bytes(row.tolist()), scale)
        for row, scale in zip(data, rows, strict=True)
    ]
    assert same_bits(out, torch.tensor(expected, dtype=torch.float64).bfloat16())


def _entries(entry: EntryFormat, groups: list[Pattern], seed: int) -> Tensor:
    """bf16[3, D]: the patterns one after the other, over and over, one in each group."""
    random, step = generator(seed), entry.group or 64
    count = -(-3 * entry.dims // step)
    rows = [_group(kind, power, step, random) for kind, power in islice(cycle(groups), count)]
    return torch.cat(rows)[: 3 * entry.dims].view(3, entry.dims).bfloat16()


def _group(kind: str, power: int, size: int, random: torch.Generator) -> Tensor:
    normal, scale = torch.randn(size, generator=random), 2.0**power
    outlier = torch.zeros(size)
    outlier[int(torch.randint(size, (1,), generator=random))] = float(normal[0])
    powers = torch.randint(-20, 18, (size,), generator=random)
    halves = torch.randint(-24, 25, (size,), generator=random) / 4
    return {
        "normal": scale * normal,
        "positive": scale * normal.abs(),
        "zero": torch.zeros(size),
        "negative_zero": -torch.zeros(size),
        "outlier": scale * outlier,
        "equal": (scale * normal[0]).expand(size),
        "ties": scale * halves,  # midpoints of the 4-bit grid once scaled
        "spread": normal * 2.0**powers,
    }[kind]


def _any_data(entry: EntryFormat, count: int, seed: int) -> Tensor:
    """Random data rows, without NaN: the reference has no value for it, encoders never write it.

    E4M3 has NaN at codes 127 and 255; bf16 where the exponent is all ones.
    """
    random = generator(seed)
    size = entry.value_bytes + entry.tail_bytes
    rows = torch.randint(256, (count, size), generator=random, dtype=torch.uint8)
    if entry.value == "e4m3":
        codes = rows[:, : entry.value_bytes]
        codes[codes & 127 == 127] -= 1
    tail = rows if entry.value == "bf16" else rows[:, entry.value_bytes :]
    tail[:, 1::2] &= 0xBF
    return rows


def _scale_rows(entry: EntryFormat, count: int, choice: list[int]) -> Tensor | None:
    """Scales drawn from the choice in turn, as encoders write them."""
    if entry.scale == "none":
        return None
    picked = torch.tensor(list(islice(cycle(choice), count * entry.groups)))
    if entry.scale.endswith("fp32"):
        mantissa, largest = (0x2B5A17, 245) if entry.scale == "amax_fp32" else (0, 254)
        exponents = picked.clamp(1, largest).int()
        return (exponents << 23 | mantissa).view(count, entry.groups).view(torch.uint8)
    if entry.scale == "e4m3":
        picked = picked.remainder(127)  # positive and not NaN
    rows = picked.to(torch.uint8).view(count, entry.groups)
    return torch.nn.functional.pad(rows, (0, entry.scale_padding), value=0)


# ---- numbers and scales -----------------------------------------------------------------------


FP8_DS_MLA, FP4 = (entry_format("main", name) for name in ("fp8_ds_mla", "fp4"))
KEYS, MXFP4 = (entry_format("indexer", name) for name in ("fp8", "mxfp4"))

quick = examples(500)


def scales_of(entry: EntryFormat, maxima: Sequence[float]) -> bytes:
    """Stored scales of an entry whose groups have these maxima, one negative element in each."""
    values = [0.0] * entry.dims
    for group, amax in enumerate(maxima):
        values[group * entry.group + 3] = -fl32(amax)
    scales = reference.encode(entry, values)[1]
    _, fast = cpu.encode(entry, torch.tensor([values]))
    assert fast is not None
    assert bytes(fast[0].tolist()) == scales
    return scales


# The last digit of 1.7500001 and 6.0000005 is one float32 step.
FP8_SCALE_BYTES = {
    0.0: 105,
    0.01: 112,
    1.0: 119,
    1.75: 119,
    1.75 + 2.0**-23: 120,
    7.0: 121,
    448.0: 127,
    449.0: 128,
}
MXFP4_SCALE_BYTES = {1.0: 125, 1.5: 125, 3.0: 126, 6.0: 127, 6.0 + 2.0**-21: 128, 12.0: 128}


def test_scales_are_the_published_powers_of_two() -> None:
    for amax, byte in FP8_SCALE_BYTES.items():
        assert scales_of(FP8_DS_MLA, [amax] * 7) == bytes([byte] * 7 + [0])
    for amax, byte in MXFP4_SCALE_BYTES.items():
        assert scales_of(MXFP4, [amax]) == bytes([byte, *scales_of(MXFP4, [])[:3]])
    for amax, scale in ((448.0, 1.0), (450.0, 2.0), (1.75, 2.0**-8)):
        assert scales_of(KEYS, [amax]) == struct.pack("<f", scale)


def test_scale_of_v41_fp4_is_the_nearest_e4m3_never_zero() -> None:
    for amax, scale in ((6.0, 1.0), (7.5, 1.25), (0.0, 2.0**-9), (6.0 * 512, 448.0)):
        assert [E4M3[code] for code in scales_of(FP4, [amax] * 32)] == [scale] * 32


def test_grids_are_those_of_torch_and_of_ocp_microscaling() -> None:
    codes = torch.arange(127, dtype=torch.uint8)
    assert list(E4M3) == codes.view(torch.float8_e4m3fn).double().tolist()
    assert E2M1 == (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@quick
@given(st.floats(-480, 480, width=32))
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
    cpu.decode(entry, *cpu.encode(entry, values), decoded)
    exact, found = values[:, : entry.value_dims].float(), decoded[:, : entry.value_dims].float()
    relative = float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert relative == pytest.approx(error, abs=tolerance)
