"""Calls that a checked operation must answer as the reference does: small, random, unkind.

Slots in no order, −1 and duplicates among indices, lengths of 0, rows that wrap around. Outputs
are NaN before, and around everything that is written is memory that must stay unchanged.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config, Precision
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import CachePlan
from dsv4kv.model.schedule import AttentionType
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops.check import reads
from dsv4kv.ops.check.maker import SPARE, Make, Maker
from dsv4kv.ops.compressor import Compressor, make_rope, random_compressor
from dsv4kv.ops.contract import PartWrite
from dsv4kv.ops.tolerance import Leeway

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
        pages = -(-SPARE // layout.entries) + 1
        room = layout.entries * pages
        entries = maker.order(room)[:SPARE]
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
        requests = maker.requests(layout)
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
        requests = maker.requests(layout)
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
    yield from _read_scenes(plan, schema)
    for place, pages in (("main", schema.main), ("indexer", schema.indexer)):
        if pages:
            yield _on("gather_all", place, pages, gather_all(pages))
            yield _on("page_copy", place, pages, page_copy(pages))


def _read_scenes(plan: CachePlan, schema: LayerCacheSchema) -> Iterator[Scene]:
    config, main = plan.config, schema.main
    if (keys := schema.indexer) and main:
        query = reads.indexer_query(config, schema.layer.ratio, plan.hadamard)
        yield Scene("indexer_query", f"{config.index_heads} heads", None, query)
        yield _on("index_scores", "indexer", keys, reads.index_scores(config, keys))
        yield Scene("select_topk", "scores of all entries", None, reads.select_topk(config, main))
    if (blocks := config.candidates) and keys and main:
        size = blocks.block_entries
        scores = reads.index_scores(config, keys, size)
        yield _on("index_scores", f"blocks of {size} of indexer", keys, scores)
        yield Scene("select_blocks", f"blocks of {size}", None, reads.select_blocks(size))
        topk = reads.select_topk(config, main, size)
        yield Scene("select_topk", f"scores of blocks of {size}", None, topk)
    if ring := schema.window:
        make, seen = reads.attend(config, ring, main, schema.layer.attn), schema.layer.attn
        yield _on("attend", f"{seen} layers' window", ring, make)


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
