"""The fast codec equals the reference codec, bit for bit, in every format."""

from itertools import cycle, islice

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.model.formats import EntryFormat, entry_format
from dsv4kv.ops import codec, reference_codec
from tests.examples import examples
from tests.ops.samples import each_entry, generator, nan_output, random_values, same_bits

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
    data, scales = codec.encode(entry, values)
    expected = [reference_codec.encode(entry, row.tolist()) for row in values.float()]
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


@each_entry
def test_decoding_reaches_a_strided_output(entry: EntryFormat) -> None:
    data, scales = codec.encode(entry, random_values(entry, 4, seed=5))
    wide, dense = nan_output(4, 2 * entry.dims), nan_output(4, entry.dims)
    codec.decode(entry, data, scales, wide[:, : entry.dims])
    codec.decode(entry, data, scales, dense)
    assert torch.equal(wide[:, : entry.dims], dense)
    assert bool(wide[:, entry.dims :].isnan().all())


def test_values_beyond_an_unscaled_fp8_saturate() -> None:
    entry = entry_format("main", "fp8")
    decoded = nan_output(1, 512)
    values = torch.tensor([1000.0, -1e30] * 256).bfloat16()[None]
    codec.decode(entry, *codec.encode(entry, values), decoded)
    assert decoded[0, :2].tolist() == [448.0, -448.0]


def _check_decoding(entry: EntryFormat, data: Tensor, scales: Tensor | None) -> None:
    out = nan_output(len(data), entry.dims)
    codec.decode(entry, data, scales, out)
    rows = [b""] * len(data) if scales is None else [bytes(row.tolist()) for row in scales]
    expected = [
        reference_codec.decode(entry, bytes(row.tolist()), scale)
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
