"""Caches in random order with several query tokens of a request, and what is outside them NaN."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import cpu
from dsv4kv.ops.storage import PageStore
from tests.ops.samples import NOT_A_NUMBER, generator, poisoned_store, read_entries

PAGE_ENTRIES, SLOTS, WIDTH = 32, 5, 4


@dataclass(frozen=True)
class Cache:
    """Query tokens: one, three of a request, one of no request, and one that sees nothing.

    Attributes:
        store: Pages, NaN wherever no request has an entry.
        table: int32[SLOTS, WIDTH].
        slots: int64[6].
        lengths: Entries that each token sees, int64[6].
    """

    store: PageStore
    table: Tensor
    slots: Tensor
    lengths: Tensor

    def seen(self, t: int) -> Tensor:
        """What a token sees, decoded: float64[length, D]."""
        length = int(self.lengths[t]) if self.slots[t] >= 0 else 0
        row = self.table[self.slots[t]].tolist()
        places = [row[i // PAGE_ENTRIES] * PAGE_ENTRIES + i % PAGE_ENTRIES for i in range(length)]
        if not places:
            return torch.empty(0, self.store.layout.format.dims, dtype=torch.float64)
        return read_entries(self.store, places).double()


def make_cache(entry: EntryFormat, seed: int, longest: int = 100) -> Cache:
    """A cache of random entries, up to ``longest`` of a request."""
    random = generator(seed)
    store = poisoned_store(entry, PAGE_ENTRIES, SLOTS * WIDTH, NOT_A_NUMBER)
    order = torch.randperm(SLOTS * WIDTH, generator=random).view(SLOTS, WIDTH).int()
    slots = torch.tensor([3, 0, 0, 0, -1, 4])
    most = int(torch.randint(60, longest + 1, (), generator=random))
    lengths = torch.tensor([7, most - 2, most - 1, most, 5, 0])
    for slot, length in ((3, 7), (0, most)):
        logical = torch.arange(length)
        physical = order[slot, logical // PAGE_ENTRIES].long() * PAGE_ENTRIES
        values = torch.randn(length, entry.dims, generator=random).bfloat16()
        cpu.entry_insert(store, values, physical + logical % PAGE_ENTRIES)
    for slot, blocks in ((3, 1), (0, -(-most // PAGE_ENTRIES))):
        order[slot, blocks:] = -1
    return Cache(store, order, slots, lengths)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value; infinite where −inf or NaN differ."""
    assert torch.equal(found.isinf(), expected.isinf())
    a, b = (each.double().where(each.isfinite(), 0) for each in (found, expected))
    assert not found.isnan().any()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) if a.numel() else 0.0


def share_pages(cache: Cache) -> Cache:
    """The same, a page there twice in a request's table, and both in that of another request."""
    table, lengths = cache.table.clone(), cache.lengths.clone()
    table[0, 1] = table[0, 0]
    table[3, :2] = table[0, :2]
    lengths[0] = PAGE_ENTRIES + 9
    return Cache(cache.store, table, cache.slots, lengths)
