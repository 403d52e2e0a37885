"""How far a checked output may be off: a rounding step here and there, and no more."""

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops import check as tolerance
from dsv4kv.ops import reference
from dsv4kv.ops.check import Grid
from tests.ops.samples import ENTRIES

EVERY_FORMAT = [
    pytest.param(entry, id=f"{place} {name}")
    for place, formats in FORMATS.items()
    for name, entry in formats.items()
]


def is_close(entry: EntryFormat, found: Tensor, right: Tensor, *, rotated: bool = False) -> bool:
    """Against an entry that is stored as it is: encoding it again changes nothing."""
    rows = reference.encode(entry, right.float().tolist())
    return tolerance.is_close(entry, found, rows, rotated=rotated)


def _stored(entry: EntryFormat, values: Tensor) -> Tensor:
    """What is read back once values [D] have been written."""
    data, scales = reference.encode(entry, values.float().tolist())
    return torch.tensor(reference.decode(entry, data, scales)).bfloat16()


def make_entry(entry: EntryFormat) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return _stored(entry, torch.randn(entry.dims, generator=generator).bfloat16())


@pytest.mark.parametrize("entry", EVERY_FORMAT)
def test_an_entry_that_is_another_or_has_lost_a_value_or_is_noisy_is_wrong(
    entry: EntryFormat,
) -> None:
    right = make_entry(entry)
    for other in (right.roll(1), torch.zeros_like(right), -right):
        assert not is_close(entry, other, right)
    step = {"bf16": 2.0**-8, "e4m3": 2.0**-4, "e2m1": 2.0**-3}[entry.value]
    assert not is_close(entry, (right.float() * (1 + step)).bfloat16(), right)
    several = make_entry(entry)
    largest = int(several[: entry.value_dims].abs().argmax())
    several[largest] *= {"bf16": 1 - 2.0**-5, "e4m3": 1 - 2.0**-2, "e2m1": 1 / 3}[entry.value]
    assert not is_close(entry, several, right)
    for channel in (0, entry.value_dims - 1, entry.dims - 1):
        right = make_entry(entry)
        right[channel] = right.abs().median()
        lost = right.clone()
        lost[channel] = 0
        assert not is_close(entry, lost, right)


@pytest.mark.parametrize(
    "entry",
    [each for each in FORMATS["main"].values() if each.groups > 1],
    ids=lambda each: each.name,
)
def test_one_group_of_an_entry_may_be_on_the_grid_of_the_next_scale_and_no_more(
    entry: EntryFormat,
) -> None:
    """Its largest value is the last that a scale serves, or the first of the next scale."""
    last, small = {"ue8m0": (448.0, 3 * 2.0**-9), "e4m3": (6.375, 1.5)}[entry.scale]
    pooled = torch.zeros(entry.dims)
    pooled[: entry.value_dims : entry.group] = last
    pooled[1 : entry.value_dims : entry.group] = small
    for moved in (1, 2):
        flipped = pooled.clone()
        flipped[: moved * entry.group : entry.group] *= 1 + 2.0**-7
        rows = reference.encode(entry, flipped.tolist())
        found = _stored(entry, pooled.bfloat16())
        assert tolerance.is_close(entry, found, rows) == (moved == 1)


# ---- rotated entries ----------------------------------------------------------------------------


def _rotate(values: Tensor) -> Tensor:
    """Hadamard over all channels, bf16 as it is stored before quantisation."""
    rows = values.double()
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < len(rows):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    rotated: Tensor = matrix @ rows / len(rows) ** 0.5
    return rotated.bfloat16()


@pytest.mark.parametrize("entry", list(FORMATS["indexer"].values()), ids=list(FORMATS["indexer"]))
def test_a_flip_before_the_rotation_is_right_and_told_only_of_rotated_entries(
    entry: EntryFormat,
) -> None:
    """One value outweighs all others, so every channel moves by a bf16 step of it."""
    pooled = torch.full((entry.dims,), 0.01).bfloat16()
    pooled[5] = 1.0
    flipped = pooled.clone()
    flipped[5] *= 1 + 2.0**-7
    right, found = (_stored(entry, _rotate(each)) for each in (pooled, flipped))
    assert is_close(entry, found, right, rotated=True)
    if entry.value == "bf16":
        assert not is_close(entry, found, right)


# ---- one code apart: all codes and scales of every format -------------------------------------


GRIDS = {
    f"{grid.value} {grid.scale}": grid
    for grid in [
        *(Grid(entry.value, entry.scale) for entry in ENTRIES.values()),
        Grid("e4m3", "amax_fp32"),  # DeepSeek-V3.2's: the largest number over 448, in float32
    ]
}
"""Each kind of values with each kind of scales."""
_BF16 = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16).double()


def _sizes(value: str) -> Tensor:
    """Magnitudes that a value can have without its scale, by code."""
    grids = {"e2m1": reference.E2M1, "e4m3": reference.E4M3}
    return torch.tensor(grids[value]).double() if value in grids else _BF16


def _both_signs(sizes: Tensor) -> Tensor:
    """From the largest negative to the largest positive; −0 is 0."""
    return torch.cat([-sizes.flip(0)[:-1], sizes])


def _scales(grid: Grid) -> list[float]:
    """Every scale that an encoder may write, in order; those of float32 in four binades."""
    if grid.scale == "none":
        return [1.0]
    if grid.scale == "e4m3":
        return list(reference.E4M3[1:])
    if grid.scale == "amax_fp32":
        amax = torch.cat([_BF16[start : start + 129] for start in FP32_STARTS])
        return sorted(set((amax.float() / 448).double().tolist()))
    return [2.0 ** (code - 127) for code in range(1, 254)]


FP32_STARTS = (0x0960, 0x3B00, 0x3F80, 0x7F80 - 129)
"""Places in bf16: the first whose smallest code is no subnormal, 1/512, 1, and the last ones."""


def _held(grid: Grid, codes: Tensor, scale: float | Tensor) -> Tensor:
    """What is read of codes under a scale."""
    held = codes * scale
    return held.bfloat16().double() if grid.scale == "amax_fp32" else held


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_a_neighbouring_code_is_right_and_the_next_but_one_is_wrong(grid: Grid) -> None:
    """A group of one value: whatever else is in a group can only add to what is wrong."""
    codes = _both_signs(_sizes(grid.value))
    place = torch.arange(len(codes))
    for some in torch.tensor_split(torch.tensor(_scales(grid)).double(), 8):
        for apart in range(-4, 5):
            near = place[(place + apart >= 0) & (place + apart < len(codes))]
            scales = some.repeat_interleave(len(near))
            sides = (codes[i].repeat(len(some)) for i in (near, near + apart))
            expected, found = (_held(grid, side, scales)[:, None] for side in sides)
            stays, moves = grid.one_code_apart(found, expected, scales)
            assert bool((stays == (abs(apart) <= 1)).all()), apart
            assert not bool((moves & ~stays).any()), apart


def test_codes_that_are_too_small_for_bf16_are_what_is_read_of_them() -> None:
    """By the least scales that are normal float32 two codes may be one number."""
    grid, codes = Grid("e4m3", "amax_fp32"), _both_signs(_sizes("e4m3"))
    for amax in _BF16[0x04E0:0x0960:7].tolist():
        read = _held(grid, codes, float(torch.tensor(amax).float() / 448))
        scales = (torch.full((len(read),), amax).float() / 448).double()
        assert bool(grid.one_code_apart(read[:, None], read[:, None], scales)[0].all())
