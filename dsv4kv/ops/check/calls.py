"""Calls that a checked operation must answer as the reference does: small, random, unkind.

Slots in no order, −1 and duplicates among indices, lengths of 0, rows that wrap around. Outputs
are NaN before, and around everything that is written lies memory that must stay as it is.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.formats import PageLayout
from dsv4kv.ops.check.maker import Make, Maker
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.writes import PartWrite

_SPARE = 21  # entries behind the first page
_MOST = 512  # entries of a large page that are read: the reference takes 0.3 ms for each
_LARGEST_INDEX = 2**31 - 1
_LONGEST_TOKENS = 2**20  # where angles are largest


def window_insert(ring: PageLayout) -> Make:
    """A chunk longer than the ring, one that wraps around, and single tokens."""

    def make(maker: Maker) -> list[Any]:
        size = ring.entries
        runs = [(1, 70, size + 8), (3, 2 * size - 3, 6), (-1, 5, 1), (0, 3, 1), (-1, 9, 1)]
        slots = torch.cat([torch.full((count,), slot) for slot, _, count in runs])
        positions = torch.cat([torch.arange(start, start + n) for _, start, n in runs])
        values = maker.values(ring.format, len(slots))
        return [maker.store(ring, 4, filled=False), values, slots, positions]

    return make


def entry_insert(layout: PageLayout) -> Make:
    """Entries anywhere, some of them nowhere."""

    def make(maker: Maker) -> list[Any]:
        pages = -(-_SPARE // layout.entries) + 1
        room = layout.entries * pages
        entries = maker.order(room)[:_SPARE]
        entries[[2, 5, 11]] = torch.tensor([-1, room, -1])
        values = maker.values(layout.format, len(entries))
        return [maker.store(layout, pages, filled=False), values, entries]

    return make


def indexer_insert(layout: PageLayout, hadamard: bool) -> Make:
    """The same for indexer keys."""

    def make(maker: Maker) -> list[Any]:
        return [*entry_insert(layout)(maker), hadamard]

    return make


def gather_topk(layout: PageLayout) -> Make:
    """Indices of which some are −1, some beyond the length and some there twice."""

    def make(maker: Maker) -> list[Any]:
        requests = _requests(maker, layout)
        lengths = requests[-1]
        indices = maker.whole(0, _LARGEST_INDEX, len(lengths), 40) % (lengths[:, None] + 3)
        indices[:, ::7] = -1
        indices[:, 1], indices[:, 3] = lengths - 1, indices[:, 2]
        indices[1, 4] = _LARGEST_INDEX
        out = maker.output(*indices.shape, layout.format.dims)
        return [*requests[:-1], indices.int(), lengths, out]

    return make


def gather_all(layout: PageLayout) -> Make:
    """Requests of several lengths; two rows behind the longest may be left as they are."""

    def make(maker: Maker) -> list[Any]:
        requests = _requests(maker, layout)
        longest = int(requests[-1].max())
        return [*requests, maker.output(len(requests[-1]), longest + 2, layout.format.dims)]

    return make


def gather_window(ring: PageLayout, window: int) -> Make:
    """Rings that are nearly empty, full and turned around often, or that nobody has written."""

    def make(maker: Maker) -> list[Any]:
        store = maker.store(ring, 5, filled=True)
        tokens = torch.tensor([7, 1_048_575, 0, ring.entries])
        slots = torch.tensor([3, 0, 4, 1])
        return [store, slots, tokens, maker.output(4, window, ring.format.dims)]

    return make


def page_copy(layout: PageLayout) -> Make:
    """Two pages onto two others."""

    def make(maker: Maker) -> list[Any]:
        store = maker.store(layout, 5, filled=True)
        return [store, torch.tensor([4, 1]), torch.tensor([0, 3])]

    return make


def state_append(compressor: Compressor, shape: tuple[int, ...]) -> Make:
    """Single tokens, and several of one request where the state can take them."""

    def make(maker: Maker) -> list[Any]:
        run = 1 if len(shape) == 2 else 3
        slots = torch.tensor([1] * run + [3, -1, 0])
        positions = 2 * compressor.ratio + torch.tensor([*range(1, run + 1), 0, 2, 0])
        kv, score = (maker.normal(len(slots), compressor.channels) for _ in range(2))
        return [compressor, maker.state(shape), kv, 3 * score, slots, positions]

    return make


def flush(compressor: Compressor, shape: tuple[int, ...], layout: PageLayout) -> Make:
    """Three groups, the last but one there is among them; a fourth's entry is nowhere."""

    def make(maker: Maker) -> list[Any]:
        last = min(compressor.groups, _LONGEST_TOKENS // compressor.ratio)
        slots, positions = torch.tensor([3, 0, 2, 1]), torch.tensor([last - 1, 1, 5, last // 8])
        entries = _targets(maker, layout, 4)
        entries[2] = -1
        store, state = maker.store(layout, 4, filled=False), maker.state(shape)
        return [compressor, state, slots, positions * compressor.ratio - 1, store, entries]

    return make


Part = tuple[Compressor, tuple[int, ...], PageLayout]
"""A compressor, the shape of its state, and its pages."""


def step_write(ring: PageLayout, parts: Sequence[Part]) -> Make:
    """Tokens that end a group and tokens that do not, one run of them where states take it."""

    def make(maker: Maker) -> list[Any]:
        compressor, shape, _ = parts[0]
        run = 1 if len(shape) == 2 else min(3, shape[1] + 1 - compressor.rows)
        slots = torch.tensor([1] * run + [3, -1, 0])
        ends = compressor.ratio - 1 + torch.arange(run)
        positions = 2 * compressor.ratio + torch.tensor([*ends, -1, 2, 0])
        done = ((positions + 1) % compressor.ratio == 0) & (slots >= 0)
        values = maker.values(ring.format, len(slots))
        writes = tuple(_part_write(maker, part, done) for part in parts)
        return [maker.store(ring, 4, filled=False), values, slots, positions, writes]

    return make


def _part_write(maker: Maker, part: Part, done: Tensor) -> PartWrite:
    compressor, shape, layout = part
    kv, score = (maker.normal(len(done), compressor.channels) for _ in range(2))
    pages = len(done)  # some have one entry each
    entries = torch.where(done, _targets(maker, layout, len(done), pages), -1)
    store = maker.store(layout, pages, filled=False)
    return PartWrite(compressor, maker.state(shape), kv, 3 * score, store, entries)


def compress_chunk(compressor: Compressor, shape: tuple[int, ...], layout: PageLayout) -> Make:
    """A chunk far inside a prompt that ends a begun group, holds two more, and begins another."""

    def make(maker: Maker) -> list[Any]:
        groups = min(compressor.groups, _LONGEST_TOKENS // compressor.ratio)
        start, count = (groups - 4) * compressor.ratio + 1, 3 * compressor.ratio
        kv, score = (maker.normal(count, compressor.channels) for _ in range(2))
        store, state = maker.store(layout, 4, filled=False), maker.state(shape)
        entries = _targets(maker, layout, 3)
        return [compressor, state, kv, 3 * score, 2, start, store, entries]

    return make


def _requests(maker: Maker, layout: PageLayout) -> list[Any]:
    """[pages, table, slots, lengths] of three requests; unused places of the table are −1."""
    longest = min(layout.entries, _MOST) + _SPARE
    lengths = torch.tensor([9, longest, 0])
    slots = torch.tensor([2, 0, 3])
    blocks = (lengths + layout.entries - 1) // layout.entries
    numbers = iter(maker.order(int(blocks.sum())).tolist())
    table = torch.full((4, int(blocks.max()) + 1), -1, dtype=torch.int32)
    for slot, count in zip(slots.tolist(), blocks.tolist(), strict=True):
        table[slot, :count] = torch.tensor([next(numbers) for _ in range(count)])
    store = maker.store(layout, int(blocks.sum()), filled=True)
    return [store, table, slots, lengths]


def _targets(maker: Maker, layout: PageLayout, count: int, pages: int = 4) -> Tensor:
    return maker.order(pages * layout.entries)[:count]
