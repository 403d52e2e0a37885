"""How far a pooled entry may be off: one code here and there, and no more.

The fast backends pool in float32, the reference in float64, and an entry is rounded twice, to bf16
and to its format: a value on a boundary may fall on the other side. So a value is *one code apart*
where some number rounds to both, a tie counting for either side: the same code or its neighbour.

The largest value of a group decides its scale, and may fall on the other side of a boundary, too.
Then the whole group is on the grid of the next scale up or down, and "some number rounds to both"
means the same: to the reference's value by its scale, and to the value found by the other. As
numbers are bf16 before, and the grids' boundaries no longer the same, two neighbours in bf16 will
do. One group of an entry may be so.

Codes of bf16 near zero are finer than a float32 sum can resolve: where they are below 2^-16 of an
entry's largest value, that is allowed on top.

A flip before a Hadamard rotation moves all channels a little.
"""

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import reference

Rows = tuple[bytes, bytes]
"""Data row and scale row of an entry."""


class Leeway(Enum):
    """What may come between an entry and the reference's."""

    NONE = "nothing: the bits are equal"
    SUM = "a sum, which each takes in its own way"
    ROTATED_SUM = "a sum that is rotated after it has been rounded"


BF16_STEP = 2.0**-7
SUM_ERROR = 2.0**-16  # of a float32 sum, against the largest: bf16 has codes far finer near zero
MEAN_TOLERANCE = {"bf16": 2e-3, "e4m3": 5e-3, "e2m1": 2e-2}
_ANYWHERE = 3  # values one code apart, however small all others are


def is_close(entry: EntryFormat, found: Tensor, expected: Rows, *, rotated: bool = False) -> bool:
    """Every value of an entry [D] within one code of the reference's, and nearly all equal.

    ``rotated`` entries may also be off by a bf16 step of the largest value in every channel: as
    one is where a value that outweighs all others has flipped, and each channel is rounded again.
    """
    right = torch.tensor(reference.decode(entry, *expected), dtype=torch.float64)
    scales = torch.tensor(reference.decode_scales(entry, expected[1]), dtype=torch.float64)
    sizes, one = [entry.value_dims, entry.tail_dims], torch.ones(1, dtype=torch.float64)
    a, b = (
        torch.split_with_sizes(each.double().clamp(-_INFINITE, _INFINITE), sizes)
        for each in (found, right)
    )
    return _near(Grid(entry.value, entry.scale), a[0], b[0], scales, rotated) and (
        not entry.tail_dims or _near(Grid("bf16", "none"), a[1], b[1], one, rotated)
    )


def _near(grid: "Grid", found: Tensor, expected: Tensor, scales: Tensor, rotated: bool) -> bool:
    a, b = (each.reshape(len(scales), -1) for each in (found, expected))
    moved = BF16_STEP if rotated else 0.0
    error = moved + (SUM_ERROR if grid.value == "bf16" else 0.0)
    stays, moves = grid.one_code_apart(a, b, scales, error * float(b.abs().amax()))
    if not bool((stays | moves).all()) or (not rotated and int((~stays).sum()) > 1):
        return False
    different = (a - b).abs()
    rest = (different if rotated else different[stays]).flatten().sort().values[:-_ANYWHERE]
    return float(rest.sum()) <= (MEAN_TOLERANCE[grid.value] + 2 * moved) * float(b.abs().sum())


@dataclass(frozen=True)
class Grid:
    """The numbers that groups of a format can hold."""

    value: str  # type of the values, see ``EntryFormat``
    scale: str  # type of a group's scale

    def one_code_apart(
        self, found: Tensor, expected: Tensor, scales: Tensor, leeway: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Which groups are at most one code apart: by the same scale, and by a neighbouring one.

        found, expected: float64[G, group]; scales: of what is expected, float64[G]; leeway: by how
        much more a value may be off. Returns bool[G] twice.
        """
        low, high = self._cells(expected, scales)
        stays = self._touch(found, scales, low - leeway, high + leeway)
        moves = torch.zeros_like(stays)
        for other in self._neighbours(scales):
            wider = leeway + BF16_STEP * found.abs()
            moves |= self._touch(found, other, low - wider, high + wider)
        return stays, moves

    def _touch(self, found: Tensor, scales: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Groups on the grid of these scales, no value apart from its interval: bool[G]."""
        below, above = self._cells(found, scales)
        return ((below <= high) & (low <= above)).all(dim=1)  # NaN compares as false

    def _cells(self, values: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Between which numbers all round to a value; NaN where it is not on its scale's grid."""
        grid, bounds = _VALUES[self.value], _BOUNDS[self.value]
        factor, most = scales[:, None], self._most(scales)[:, None]
        code = torch.searchsorted(bounds[1:-1], values / factor)
        on_grid = torch.where(self._read(grid[code] * factor) == values, 0.0, torch.nan)
        low, high = (bounds[i] * factor + on_grid for i in (code, code + 1))
        return low.clamp(-most, most), high.clamp(-most, most)

    def _read(self, products: Tensor) -> Tensor:
        """What is read of codes times scales: bf16, which most products are already."""
        return products.bfloat16().double() if self.scale == "amax_fp32" else products

    def _most(self, scales: Tensor) -> Tensor:
        """The largest number for which a scale is chosen, float64[G]."""
        largest = _VALUES[self.value][-1]
        if self.scale == "none":
            return torch.full_like(scales, torch.inf)
        if (
            self.scale == "amax_fp32"
        ):  # the largest number, bf16, over the largest code, in float32
            return self._read(largest * scales)
        if self.scale == "e4m3":  # is rounded to the nearest
            boundary = (scales + self._neighbours(scales)[1]) / 2
            return largest * boundary.nan_to_num(nan=torch.inf)
        return largest * scales  # is rounded up

    def _neighbours(self, scales: Tensor) -> tuple[Tensor, ...]:
        """Scales one step down and one up, 0 or NaN where there is none: float64[G] each."""
        if self.scale == "none":
            return ()
        if self.scale == "amax_fp32":
            i = torch.searchsorted(_BF16_SIZES, self._most(scales))
            neighbours = (
                _BF16_SIZES[(i + step).clamp_(0, len(_BF16_SIZES) - 1)] for step in (-1, 1)
            )
            return tuple((most / _VALUES[self.value][-1]).float().double() for most in neighbours)
        if self.scale == "e4m3":
            i = torch.searchsorted(_E4M3_SCALES, scales)
            last = len(_E4M3_SCALES) - 1
            return _E4M3_SCALES[(i - 1).clamp_min(0)], _E4M3_SCALES[(i + 1).clamp_max(last)]
        return scales / 2, scales * 2


def _signed(sizes: list[float]) -> Tensor:
    return torch.tensor([-size for size in sizes[:0:-1]] + sizes, dtype=torch.float64)


_INFINITE = 2.0**128  # stands for infinity: the next after the largest bf16
_BF16 = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16).double().tolist()
_BF16_SIZES = torch.tensor([*_BF16, math.nan], dtype=torch.float64)
_VALUES = {
    "bf16": _signed([*_BF16, _INFINITE]),
    "e4m3": _signed(list(reference.E4M3)),
    "e2m1": _signed(list(reference.E2M1)),
}
_END = torch.full((1,), torch.inf, dtype=torch.float64)
_BOUNDS = {
    name: torch.cat([-_END, (values[1:] + values[:-1]) / 2, _END])
    for name, values in _VALUES.items()
}
_E4M3_SCALES = torch.tensor([*reference.E4M3, math.nan], dtype=torch.float64)
