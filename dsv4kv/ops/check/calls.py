"""Calls that a checked operation must answer as the reference does: small, random, unkind.

Slots in no order, −1 and duplicates among indices, lengths of 0, rows that wrap around. Outputs
are NaN before, and around everything that is written lies memory that must stay as it is.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config, Precision
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.plan import CachePlan
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops import cpu
from dsv4kv.ops.compressor import Compressor, make_rope, random_compressor
from dsv4kv.ops.contract import PartWrite
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.tolerance import Leeway

_GUARD = 0xA5


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

    def output(self, *shape: int) -> Tensor:
        """An output that nobody has written: NaN, bf16."""
        return self.guard(torch.full(shape, torch.nan, dtype=torch.bfloat16))

    def state(self, shape: tuple[int, ...]) -> Tensor:
        """States of four requests in the middle of a group."""
        state = self.normal(4, *shape)
        if len(shape) == 2:  # online: the denominator counts the largest token as 1
            state[:, 1].abs_().add_(1)
        return self.guard(state)


Make = Callable[[Maker], list[Any]]


def make_call(make: Make, device: torch.device, seed: int) -> Call:
    """Arguments of one call on a device."""
    maker = Maker(device, seed)
    arguments = [_moved(argument, device) for argument in make(maker)]
    return Call(arguments, maker.guarded)


def _moved(argument: Any, device: torch.device) -> Any:
    if isinstance(argument, tuple):
        return tuple(PartWrite(*(_moved(x, device) for x in part.fields())) for part in argument)
    return argument.to(device) if isinstance(argument, Tensor | Compressor) else argument


_SPARE = 21  # entries after the first page
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
    """Requests of several lengths; two rows after the longest may be left as they are."""

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


def norm_rope_insert(compressor: Compressor, layout: PageLayout) -> Make:
    """Tokens that complete an entry, the last that the table has among them, and one of none."""

    def make(maker: Maker) -> list[Any]:
        last = min(compressor.groups, _LONGEST_TOKENS // compressor.ratio)
        groups = torch.tensor([last - 1, 1, 5, last // 8, 2])
        entries = _targets(maker, layout, len(groups))
        entries[2] = -1
        values = maker.values(layout.format, len(groups))
        store, positions = maker.store(layout, 4, filled=False), groups * compressor.ratio - 1
        return [compressor, values, positions, store, entries]

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


@dataclass(frozen=True)
class Scene:
    """One call of an operation.

    Attributes:
        operation: Name in the contract.
        subject: What it works on, in words.
        format_name: Of its pages; None without pages.
        make: Makes the arguments.
        leeway: How far written entries may be from the reference's.
    """

    operation: str
    subject: str
    format_name: str | None
    make: Make
    leeway: Leeway = Leeway.NONE


def scenes_of(plan: CachePlan, seed: int) -> list[Scene]:
    """Scenes of a cache; layers of one kind share theirs."""
    random = torch.Generator().manual_seed(seed)
    scenes: dict[tuple[str, str], Scene] = {}
    for schema in plan.schemas:
        for scene in (*_page_scenes(plan, schema), *_state_scenes(plan, schema, random)):
            scenes.setdefault((scene.operation, scene.subject), scene)
    return list(scenes.values())


def _page_scenes(plan: CachePlan, schema: LayerCacheSchema) -> Iterator[Scene]:
    if ring := schema.window:
        window = plan.config.window_tokens
        yield _on("window_insert", "window", ring, window_insert(ring))
        yield _on("gather_window", "window", ring, gather_window(ring, window))
    if main := schema.main:
        yield _on("entry_insert", "main", main, entry_insert(main))
        if schema.layer.attn is AttentionType.CSA:
            yield _on("gather_topk", "main", main, gather_topk(main))
    if keys := schema.indexer:
        insert = indexer_insert(keys, plan.hadamard)
        leeway = Leeway.SUM if plan.hadamard else Leeway.NONE  # a rotation is a sum
        yield _on("indexer_insert", "indexer", keys, insert, leeway)
    for place, pages in (("main", schema.main), ("indexer", schema.indexer)):
        if pages:
            yield _on("gather_all", place, pages, gather_all(pages))
            yield _on("page_copy", place, pages, page_copy(pages))


@functools.lru_cache(maxsize=2)
def _whole_rope(config: DSV4Config, ratio: int, precision: Precision) -> Tensor:
    """Of all positions that the model has, however long the cache's requests are."""
    return make_rope(config, ratio, config.max_context_tokens, precision)


def _on(
    operation: str, place: str, pages: PageLayout, make: Make, leeway: Leeway = Leeway.NONE
) -> Scene:
    subject = f"{place} pages of {pages.entries} {pages.format.name} entries"
    return Scene(operation, subject, pages.format.name, make, leeway)


def _state_scenes(
    plan: CachePlan, schema: LayerCacheSchema, random: torch.Generator
) -> Iterator[Scene]:
    parts: list[Part] = []
    for place, pages, shape in (
        ("main", schema.main, schema.state_shape),
        ("indexer", schema.indexer, schema.indexer_state_shape),
    ):
        if not pages or schema.layer.attn is AttentionType.DSA:
            continue
        indexer = place == "indexer"
        compressor = random_compressor(
            plan.config,
            schema.layer,
            random,
            rope=_whole_rope(plan.config, schema.layer.ratio, plan.rope),
            indexer=indexer,
            hadamard=indexer and plan.hadamard,
        )
        states = f"{place} states of {schema.layer.attn} layers"
        leeway = Leeway.ROTATED_SUM if compressor.turns_rounded else Leeway.SUM
        if not shape:
            make = norm_rope_insert(compressor, pages)
            yield Scene("norm_rope_insert", f"{place} latents", pages.format.name, make, leeway)
            continue
        append = state_append(compressor, shape)
        yield Scene("state_append", states, None, append)
        for operation, make in (
            ("flush", flush(compressor, shape, pages)),
            ("compress_chunk", compress_chunk(compressor, shape, pages)),
        ):
            yield Scene(operation, states, pages.format.name, make, leeway)
        parts.append((compressor, shape, pages))
    if parts and schema.window:
        step, subject = step_write(schema.window, parts), f"{schema.layer.attn} layers"
        yield Scene("step_write", subject, schema.window.format.name, step, Leeway.SUM)
