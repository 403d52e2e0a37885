"""What one code apart is, over all codes and scales of every format."""

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import reference_codec
from dsv4kv.ops.tolerance import Grid, is_close
from tests.ops.samples import ENTRIES, each_entry, generator

KINDS = {f"{entry.value} {entry.scale}": entry for entry in ENTRIES.values()}
"""A format for each kind of values with each kind of scales."""
SCALED = {name: entry for name, entry in KINDS.items() if entry.group}
_BF16 = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16).double()


def _sizes(value: str) -> Tensor:
    """Magnitudes that a value can have without its scale, by code."""
    grids = {"e2m1": reference_codec.E2M1, "e4m3": reference_codec.E4M3}
    return torch.tensor(grids[value]).double() if value in grids else _BF16


def _signed(sizes: Tensor) -> Tensor:
    """From the largest negative to the largest positive; −0 is 0."""
    return torch.cat([-sizes.flip(0)[:-1], sizes])


def _scales(entry: EntryFormat) -> list[float]:
    """Every scale that an encoder may write, in order."""
    if entry.scale == "none":
        return [1.0]
    if entry.scale == "e4m3":
        return list(reference_codec.E4M3[1:])
    return [2.0 ** (code - 127) for code in range(1, 254)]


@pytest.mark.parametrize("entry", KINDS.values(), ids=KINDS)
def test_a_neighbouring_code_is_right_and_the_next_but_one_is_wrong(entry: EntryFormat) -> None:
    """A group of one value: whatever else is in a group can only add to what is wrong."""
    grid, codes = Grid(entry.value, entry.scale), _signed(_sizes(entry.value))
    place = torch.arange(len(codes))
    for scale in _scales(entry):
        for apart in range(-4, 5):
            near = place[(place + apart >= 0) & (place + apart < len(codes))]
            expected, found = codes[near] * scale, codes[near + apart] * scale
            scales = torch.full((len(near),), scale, dtype=torch.float64)
            stays, moves = grid.one_code_apart(found[:, None], expected[:, None], scales)
            assert bool((stays == (abs(apart) <= 1)).all()), (scale, apart)
            assert not bool((moves & ~stays).any()), (scale, apart)


@pytest.mark.parametrize("entry", SCALED.values(), ids=SCALED)
def test_no_value_several_codes_off_is_right_by_another_scale(entry: EntryFormat) -> None:
    """Each code against each, both ways."""
    grid, codes = Grid(entry.value, entry.scale), _signed(_sizes(entry.value))
    pairs = torch.cartesian_prod(torch.arange(len(codes)), torch.arange(len(codes)))
    far = pairs[(pairs[:, 0] - pairs[:, 1]).abs() > 1]
    for scale in _scales(entry)[:: 1 if entry.value == "e2m1" else 16]:
        found, expected = (codes[far[:, side], None] * scale for side in (0, 1))
        scales = torch.full((len(far),), scale, dtype=torch.float64)
        assert not any(map(torch.any, grid.one_code_apart(found, expected, scales)))


def _codes(values: Tensor, scale: float, value: str) -> Tensor:
    """The codes that values are rounded to, by the reference."""
    grid = reference_codec.E2M1 if value == "e2m1" else reference_codec.E4M3
    rounded = [reference_codec.round_to_grid(size / scale, grid) for size in values.tolist()]
    return torch.tensor(rounded)


def _moves(entry: EntryFormat, found: Tensor, expected: Tensor, scale: float) -> Tensor:
    """Which values found are one code apart by a neighbouring scale; each is a group."""
    scales = torch.full((len(found),), scale, dtype=torch.float64)
    grid = Grid(entry.value, entry.scale)
    return grid.one_code_apart(found[:, None], expected[:, None], scales)[1]


@pytest.mark.parametrize("entry", SCALED.values(), ids=SCALED)
def test_what_neighbours_in_bf16_become_by_neighbouring_scales_is_one_code_apart(
    entry: EntryFormat,
) -> None:
    """All of bf16 up to what the smaller scale serves; and more than a step beyond is wrong."""
    sizes, every = _sizes(entry.value), _scales(entry)
    for i in range(1, len(every) - 1) if entry.scale == "e4m3" else (84, 126, 168):
        right = every[i]
        reach: dict[float, tuple[float, float]] = {}
        numbers: set[float] = set()
        for wrong in (every[i - 1], every[i + 1]):
            small, large = sorted((right, wrong))
            most = sizes[-1] * ((small + large) / 2 if entry.scale == "e4m3" else small)
            values = _BF16[(most * (1 + 2.0**-6) >= _BF16) & (sizes[1] * small / 8 <= _BF16)]
            served = slice(1, int((values <= most).sum()) - 1)
            held, found = (
                sizes[_codes(values, scale, entry.value)] * scale for scale in (right, wrong)
            )
            for shift in (-1, 0, 1):
                moves = _moves(entry, found.roll(shift)[served], held[served], right)
                assert bool(moves.all()), (right, wrong, shift)
            for size in set(held.tolist()):
                places = (held == size).nonzero().flatten()
                ends = max(int(places[0]) - 2, 0), min(int(places[-1]) + 2, len(held) - 1)
                low, high = reach.get(size, (torch.inf, 0.0))
                reach[size] = min(low, float(found[ends[0]])), max(high, float(found[ends[1]]))
            numbers |= set(found.tolist())
        for size, (low, high) in reach.items():
            beyond = torch.tensor([n for n in numbers if not low <= n <= high]).double()
            assert not bool(_moves(entry, beyond, torch.full_like(beyond, size), right).any())


def _rows(entry: EntryFormat, seed: int) -> tuple[bytes, bytes]:
    values = torch.randn(entry.dims, generator=generator(seed)).bfloat16()
    return reference_codec.encode(entry, values.float().tolist())


@each_entry
@pytest.mark.parametrize("rotated", [False, True])
def test_any_one_value_of_an_entry_may_be_a_neighbour_and_no_more(
    entry: EntryFormat, rotated: bool
) -> None:
    """The entry of otherwise zeros that a tolerance in parts of its size would refuse, too."""
    random, codes = generator(3), _signed(_sizes(entry.value))
    for empty in (False, True):
        rows = _rows(entry, 4)
        if empty:
            rows = bytes(len(rows[0])), rows[1]
        scales = reference_codec.decode_scales(entry, rows[1])
        held = torch.tensor(reference_codec.decode(entry, *rows), dtype=torch.float64)
        for channel in torch.randint(entry.value_dims, (20,), generator=random).tolist():
            scale = scales[channel // entry.group] if entry.group else 1.0
            code = int((codes * scale == held[channel]).nonzero()[0])
            for apart in {-2, -1, 1, 2}:
                found = held.clone()
                if 0 <= code + apart < len(codes):
                    found[channel] = codes[code + apart] * scale
                    right = is_close(entry, found, rows, rotated=rotated)
                    told = abs(float(found[channel] - held[channel])) > held.abs().max() / 2**16
                    if abs(apart) == 1 or (told and not rotated):
                        assert right == (abs(apart) == 1), (channel, apart)
