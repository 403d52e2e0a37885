"""How far a checked output may be off: a rounding step here and there, and no more."""

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops import reference_codec, tolerance

EVERY_FORMAT = [
    pytest.param(entry, id=f"{place} {name}")
    for place, formats in FORMATS.items()
    for name, entry in formats.items()
]


def is_close(entry: EntryFormat, found: Tensor, right: Tensor, *, rotated: bool = False) -> bool:
    """Against an entry that is stored as it is: encoding it again changes nothing."""
    rows = reference_codec.encode(entry, right.float().tolist())
    return tolerance.is_close(entry, found, rows, rotated=rotated)


def _stored(entry: EntryFormat, values: Tensor) -> Tensor:
    """What is read back once values [D] have been written."""
    data, scales = reference_codec.encode(entry, values.float().tolist())
    return torch.tensor(reference_codec.decode(entry, data, scales)).bfloat16()


def make_entry(entry: EntryFormat) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return _stored(entry, torch.randn(entry.dims, generator=generator).bfloat16())


@pytest.mark.parametrize("entry", EVERY_FORMAT)
def test_an_entry_of_another_token_is_wrong(entry: EntryFormat) -> None:
    right = make_entry(entry)
    assert not is_close(entry, right.roll(1), right)
    assert not is_close(entry, torch.zeros_like(right), right)
    assert not is_close(entry, -right, right)


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
        rows = reference_codec.encode(entry, flipped.tolist())
        found = _stored(entry, pooled.bfloat16())
        assert tolerance.is_close(entry, found, rows) == (moved == 1)


@pytest.mark.parametrize("entry", EVERY_FORMAT)
def test_one_lost_value_of_common_size_is_wrong(entry: EntryFormat) -> None:
    for channel in (0, entry.value_dims - 1, entry.dims - 1):
        right = make_entry(entry)
        right[channel] = right.abs().median()
        found = right.clone()
        found[channel] = 0
        assert not is_close(entry, found, right)


def test_codes_near_zero_that_a_float32_sum_cannot_tell_are_right() -> None:
    entry = FORMATS["main"]["bf16"]
    right = make_entry(entry)
    right[7] = 1e-6
    found = right.clone()
    found[7] = 3e-6
    assert is_close(entry, found, right)
    found[7] = 1e-3
    assert not is_close(entry, found, right)


@pytest.mark.parametrize("entry", EVERY_FORMAT)
def test_a_value_several_steps_off_is_wrong(entry: EntryFormat) -> None:
    found = make_entry(entry)
    largest = int(found[: entry.value_dims].abs().argmax())
    found[largest] *= {"bf16": 1 - 2.0**-5, "e4m3": 1 - 2.0**-2, "e2m1": 1 / 3}[entry.value]
    assert not is_close(entry, found, make_entry(entry))


@pytest.mark.parametrize("entry", EVERY_FORMAT)
def test_noise_of_one_step_everywhere_is_wrong(entry: EntryFormat) -> None:
    right = make_entry(entry)
    step = {"bf16": 2.0**-8, "e4m3": 2.0**-4, "e2m1": 2.0**-3}[entry.value]
    assert not is_close(entry, (right.float() * (1 + step)).bfloat16(), right)


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
