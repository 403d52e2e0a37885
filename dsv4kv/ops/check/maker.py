"""The arguments of one call: random, guarded, equal for equal seeds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.ops import cpu
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Entries, PartWrite
from dsv4kv.ops.storage import PageStore

SPARE = 21
"""Entries after the first page."""

_GUARD = 0xA5
_MOST = 512  # entries of a large page that are read: the reference takes 0.3 ms for each


@dataclass(frozen=True)
class Call:
    """Arguments of one call, and the memory around those that are written.

    Attributes:
        arguments: As in the contract.
        guarded: Buffers whose first and last row are no argument's.
    """

    arguments: list[Any]
    guarded: list[Tensor]


class Maker:
    """Makes the arguments of a call on a device; equal seeds make equal ones."""

    def __init__(self, device: torch.device, seed: int) -> None:
        """Numbers are drawn on the CPU, so that they do not depend on the device."""
        self.device = device
        self.random = torch.Generator().manual_seed(seed)
        self.guarded: list[Tensor] = []

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """int64 from ``low`` to below ``high``, on the CPU."""
        return torch.randint(low, high, shape, generator=self.random)

    def order(self, count: int) -> Tensor:
        """0 … count − 1 in random order, int64, on the CPU."""
        return torch.randperm(count, generator=self.random)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal float32, on the CPU."""
        return torch.randn(shape, generator=self.random)

    def values(self, entry: EntryFormat, count: int) -> Tensor:
        """bf16[count, D] of sizes that differ from group to group, on the CPU."""
        powers = self.whole(-6, 6, count, entry.dims // 16).repeat_interleave(16, dim=1)
        return (self.normal(count, entry.dims) * 2.0**powers).bfloat16()

    def guard(self, content: Tensor) -> Tensor:
        """The content on the device, with a guard row before and after it."""
        size = content[0].nbytes
        rows = torch.full((len(content) + 2, size), _GUARD, dtype=torch.uint8)
        rows[1:-1] = content.contiguous().view(torch.uint8).view(len(content), size)
        self.guarded.append(rows.to(self.device))
        return self.guarded[-1][1:-1].view(content.dtype).view(content.shape)

    def store(self, layout: PageLayout, pages: int, *, filled: bool) -> PageStore:
        """Pages of random entries, or of bytes that are none."""
        store = PageStore.allocate(layout, pages, torch.device("cpu"))
        store.pages.fill_(_GUARD)
        if filled:
            count = store.num_entries
            cpu.entry_insert(store, self.values(layout.format, count), torch.arange(count))
        return PageStore(layout, self.guard(store.pages))

    def output(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """An output that nobody has written: NaN, or an integer that is nothing."""
        nothing = torch.nan if dtype.is_floating_point else _GUARD
        return self.guard(torch.full(shape, nothing, dtype=dtype))

    def state(self, shape: tuple[int, ...]) -> Tensor:
        """States of four requests in the middle of a group."""
        state = self.normal(4, *shape)
        if len(shape) == 2:  # online: the denominator counts the largest token as 1
            state[:, 1].abs_().add_(1)
        return self.guard(state)

    def requests(self, layout: PageLayout) -> list[Any]:
        """[pages, table, slots, lengths] of three requests; unused places of the table are −1."""
        longest = min(layout.entries, _MOST) + SPARE
        lengths = torch.tensor([9, longest, 0])
        slots = torch.tensor([2, 0, 3])
        blocks = (lengths + layout.entries - 1) // layout.entries
        numbers = iter(self.order(int(blocks.sum())).tolist())
        table = torch.full((4, int(blocks.max()) + 1), -1, dtype=torch.int32)
        for slot, count in zip(slots.tolist(), blocks.tolist(), strict=True):
            table[slot, :count] = torch.tensor([next(numbers) for _ in range(count)])
        store = self.store(layout, int(blocks.sum()), filled=True)
        return [store, table, slots, lengths]


Make = Callable[[Maker], list[Any]]


def make_call(make: Make, device: torch.device, seed: int) -> Call:
    """Arguments of one call on a device."""
    maker = Maker(device, seed)
    arguments = [_moved(argument, device) for argument in make(maker)]
    return Call(arguments, maker.guarded)


def _moved(argument: Any, device: torch.device) -> Any:
    if isinstance(argument, tuple):
        return tuple(PartWrite(*(_moved(x, device) for x in part.fields())) for part in argument)
    if isinstance(argument, Entries):
        return Entries(*(_moved(x, device) for x in argument.fields()))
    return argument.to(device) if isinstance(argument, Tensor | Compressor) else argument
