"""Calls that a checked operation must answer as the reference does: small, random, unkind.

Slots in no order, −1 and duplicates among indices, lengths of 0, rows that wrap around. Outputs
are NaN before, and around everything that is written is memory that must stay unchanged. Of a
decode step's reads there are several tokens of a request, one of none, one that sees nothing.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.config import AttentionType, DSV4Config, Precision
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.plan import CachePlan, LayerCacheSchema
from dsv4kv.ops import cpu
from dsv4kv.ops.spec import OPERATIONS
from dsv4kv.ops.storage import (
    Compressor,
    Entries,
    PageStore,
    PartWrite,
    make_rope,
    random_compressor,
    rope_rows,
)

_GUARD = 0xA5
_SPARE = 21  # entries after the first page
_MOST = 512  # entries of a large page that are read: the reference takes 0.3 ms for each
_LARGEST_INDEX = 2**31 - 1
_LONGEST_TOKENS = 2**20  # where angles are largest
_TOKENS, _ROOM, _CHOSEN = 6, 2, 24  # of a read; columns after the longest request; of a top k
_INDICES = 40  # of a request

Arguments = dict[str, Any]


class Leeway(Enum):
    """What may come between an entry and the reference's."""

    NONE = "nothing: the bits are equal"
    SUM = "a sum, which each takes in its own way"
    ROTATED_SUM = "a sum that is rotated after it has been rounded"


@dataclass(frozen=True)
class Call:
    """Arguments of one call by name, and the memory around those that are written.

    ``guarded``: buffers whose first and last row are no argument's.
    """

    arguments: Arguments
    guarded: list[Tensor]

    def to(self, device: torch.device) -> "Call":
        """The same on a device."""
        arguments = {name: moved(each, device) for name, each in self.arguments.items()}
        return Call(arguments, [each.to(device) for each in self.guarded])


def moved(argument: Any, device: torch.device) -> Any:
    """An argument of any kind on a device."""
    if isinstance(argument, tuple):
        return tuple(moved(each, device) for each in argument)
    if isinstance(argument, PartWrite | Entries | PageStore):
        own = {each.name: getattr(argument, each.name) for each in fields(argument)}
        return replace(argument, **{name: moved(each, device) for name, each in own.items()})
    return argument.to(device) if isinstance(argument, Tensor | Compressor) else argument


class Maker:
    """Makes the arguments of a call; equal seeds make equal ones, whatever the device.

    On ``meta`` pages, values and outputs have no content, numbers of slots and entries have.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.place = device if device.type == "meta" else torch.device("cpu")  # where it is made
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
        if self.device.type == "meta":
            return torch.empty(count, entry.dims, dtype=torch.bfloat16, device=self.device)
        powers = self.whole(-6, 6, count, entry.dims // 16).repeat_interleave(16, dim=1)
        return (self.normal(count, entry.dims) * 2.0**powers).bfloat16()

    def guard(self, content: Tensor) -> Tensor:
        """The content on the device, with a guard row before and after it."""
        if self.device.type == "meta":
            return content.to(self.device)
        size = content[0].nbytes
        rows = torch.full((len(content) + 2, size), _GUARD, dtype=torch.uint8)
        rows[1:-1] = content.contiguous().view(torch.uint8).view(len(content), size)
        self.guarded.append(rows.to(self.device))
        return self.guarded[-1][1:-1].view(content.dtype).view(content.shape)

    def store(self, layout: PageLayout, pages: int, *, filled: bool) -> PageStore:
        """Pages of random entries, or of bytes that are none."""
        store = PageStore.allocate(layout, pages, self.place)
        store.pages.fill_(_GUARD)
        if filled and self.device.type != "meta":
            count = store.num_entries
            cpu.entry_insert(store, self.values(layout.format, count), torch.arange(count))
        return PageStore(layout, self.guard(store.pages))

    def output(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """An unwritten output: NaN, or an integer that is no result."""
        nothing = torch.nan if dtype.is_floating_point else _GUARD
        return self.guard(torch.full(shape, nothing, dtype=dtype, device=self.place))

    def state(self, shape: tuple[int, ...]) -> Tensor:
        """States of four requests in the middle of a group."""
        state = self.normal(4, *shape)
        if len(shape) == 2:  # online: the denominator counts the largest token as 1
            state[:, 1].abs_().add_(1)
        return self.guard(state)

    def targets(self, layout: PageLayout, count: int, pages: int = 4) -> Tensor:
        """Distinct physical entries, int64[count]."""
        return self.order(pages * layout.entries)[:count]

    def requests(self, layout: PageLayout) -> Arguments:
        """Pages of three requests; unused places of the table are −1."""
        longest = min(layout.entries, _MOST) + _SPARE
        lengths, slots = torch.tensor([9, longest, 0]), torch.tensor([2, 0, 3])
        blocks = (lengths + layout.entries - 1) // layout.entries
        numbers = iter(self.order(int(blocks.sum())).tolist())
        table = torch.full((4, int(blocks.max()) + 1), -1, dtype=torch.int32)
        for slot, count in zip(slots.tolist(), blocks.tolist(), strict=True):
            table[slot, :count] = torch.tensor([next(numbers) for _ in range(count)])
        store = self.store(layout, int(blocks.sum()), filled=True)
        return {"store": store, "table": table, "slots": slots, "lengths": lengths}

    def tokens(self, layout: PageLayout) -> Arguments:
        """Pages of six tokens, three of them of one request."""
        made = self.requests(layout)
        slots, lengths = made["slots"], made["lengths"]
        drafts = torch.tensor([2, 1, 0])
        made["slots"] = torch.cat([slots[:1], slots[1].expand(3), slots[2:], torch.tensor([-1])])
        made["lengths"] = torch.cat(
            [lengths[:1], lengths[1] - drafts, lengths[2:], torch.tensor([4])]
        )
        return made

    def blocks(self, lengths: Tensor, size: int) -> Tensor:
        """Some blocks of each token, the last it sees among them, ascending: int32[T, 4]."""
        found = torch.full((len(lengths), 4), -1, dtype=torch.int32)
        for t, length in enumerate(lengths.tolist()):
            count = -(-length // size)
            chosen = {count - 1, *self.order(max(count, 1))[:3].tolist()} if count else set()
            found[t, : len(chosen)] = torch.tensor(sorted(chosen))
        return found

    def fill(self, operation: str, pages: PageLayout | None, **made: Any) -> Arguments:
        """What is made already, and every other argument by its type; outputs are unwritten.

        Sizes are of the tensors that are made; others are given by their names, as ``M=7``.
        """
        row = OPERATIONS[operation]
        sizes = {"D": pages.format.dims} if pages else {}
        sizes |= {name: made.pop(name) for name in list(made) if name.isupper()}
        for each in row.arguments:
            if each.shape and isinstance(tensor := made.get(each.name), Tensor):
                sizes |= zip(each.shape, tensor.shape, strict=True)
        for each in row.arguments:
            if each.name in made:
                continue
            if each.dtype == "pages":
                assert pages
                made[each.name] = self.store(pages, 4, filled="out" in row.writes)
                continue
            shape = [sizes[size] for size in each.shape]
            if each.name in row.writes:
                made[each.name] = self.output(*shape, dtype=getattr(torch, each.dtype))
            elif pages and each.dtype == "bfloat16":
                made[each.name] = self.values(pages.format, shape[0])
            else:
                made[each.name] = 3 * self.normal(*shape)
        return made


Make = Callable[[Maker], Arguments]


def make_call(make: Make, device: torch.device, seed: int) -> Call:
    """Arguments of one call on a device."""
    maker = Maker(device, seed)
    arguments = {name: moved(each, device) for name, each in make(maker).items()}
    return Call(arguments, maker.guarded)


def window_insert(ring: PageLayout, maker: Maker) -> Arguments:
    """A chunk longer than the ring, one that wraps around, and single tokens."""
    size = ring.entries
    runs = [(1, 70, size + 8), (3, 2 * size - 3, 6), (-1, 5, 1), (0, 3, 1), (-1, 9, 1)]
    slots = torch.cat([torch.full((count,), slot) for slot, _, count in runs])
    positions = torch.cat([torch.arange(start, start + n) for _, start, n in runs])
    return maker.fill("window_insert", ring, slots=slots, positions=positions)


def on_pages(operation: str, layout: PageLayout, hadamard: bool, maker: Maker) -> Arguments:
    """Entries anywhere, some nowhere; indices, some of them −1, too large or repeated.

    After the longest request are two rows that may be left as they are.
    """
    names, pages = OPERATIONS[operation].names, max(5, -(-_SPARE // layout.entries) + 1)
    if "table" in names:
        made = maker.requests(layout)
        made["M"] = int(made["lengths"].max()) + _ROOM
        if "indices" in names:
            made["indices"] = _chosen(maker, made["lengths"], last=True)
        return maker.fill(operation, layout, **made)
    entries = maker.order(layout.entries * pages)[:_SPARE]
    entries[[2, 5, 11]] = torch.tensor([-1, layout.entries * pages, -1])
    made = {
        "store": maker.store(layout, pages, filled=True),
        "entries": entries,
        "hadamard": hadamard,
        "sources": torch.tensor([4, 1]),
        "targets": torch.tensor([0, 3]),
    }
    return maker.fill(operation, layout, **{name: made[name] for name in names if name in made})


def gather_window(ring: PageLayout, window: int, maker: Maker) -> Arguments:
    """Rings that are nearly empty, full, wrapped around many times, or never written."""
    tokens = torch.tensor([7, 1_048_575, 0, ring.entries])
    store, slots = maker.store(ring, 5, filled=True), torch.tensor([3, 0, 4, 1])
    return maker.fill("gather_window", ring, ring=store, slots=slots, tokens=tokens, M=window)


Part = tuple[Compressor, tuple[int, ...], PageLayout]
"""A compressor, the shape of its state, and its pages."""


def _last_group(compressor: Compressor) -> int:
    return min(compressor.groups, _LONGEST_TOKENS // compressor.ratio)


def _of_part(operation: str, part: Part, maker: Maker, **made: Any) -> Arguments:
    compressor, shape, layout = part
    made |= {"compressor": compressor} | ({"state": maker.state(shape)} if shape else {})
    return maker.fill(operation, layout, **made, C=compressor.channels)


def norm_rope_insert(part: Part, maker: Maker) -> Arguments:
    """Tokens that complete an entry, the last that the table has among them, and one of none."""
    compressor, _, layout = part
    last = _last_group(compressor)
    positions = torch.tensor([last - 1, 1, 5, last // 8, 2]) * compressor.ratio - 1
    entries = maker.targets(layout, len(positions))
    entries[2] = -1
    return _of_part("norm_rope_insert", part, maker, positions=positions, entries=entries)


def state_append(part: Part, maker: Maker) -> Arguments:
    """Single tokens, and several of one request where the state can take them."""
    compressor, shape, _ = part
    run = 1 if len(shape) == 2 else min(3, shape[1])
    slots = torch.tensor([1] * run + [3, -1, 0])
    positions = 2 * compressor.ratio + torch.tensor([*range(1, run + 1), 0, 2, 0])
    return _of_part("state_append", part, maker, slots=slots, positions=positions)


def flush(part: Part, maker: Maker) -> Arguments:
    """Three groups, the last but one there is among them; a fourth's entry is nowhere.

    No first group of a request: what it pools of the group before is whatever a slot is reset to.
    """
    compressor, _, layout = part
    last, slots = _last_group(compressor), torch.tensor([3, 0, 2, 1])
    positions = torch.tensor([last - 1, 2, 5, last // 8]) * compressor.ratio - 1
    entries = maker.targets(layout, 4)
    entries[2] = -1
    return _of_part("flush", part, maker, slots=slots, positions=positions, entries=entries)


def step_write(ring: PageLayout, parts: Sequence[Part], maker: Maker) -> Arguments:
    """Tokens that end a group and tokens that do not, one run of them where states take it."""
    compressor, shape, _ = parts[0]
    run = 1 if len(shape) == 2 else min(3, shape[1] + 1 - compressor.rows)
    slots = torch.tensor([1] * run + [3, -1, 0])
    ends = compressor.ratio - 1 + torch.arange(run)
    positions = 2 * compressor.ratio + torch.tensor([*ends, -1, 2, 0])
    done = ((positions + 1) % compressor.ratio == 0) & (slots >= 0)
    count, writes = len(slots), []
    for each, held, layout in parts:
        kv, score = (3 * maker.normal(count, each.channels) for _ in range(2))
        entries = torch.where(done, maker.targets(layout, count, count), -1)
        store = maker.store(layout, count, filled=False)  # some pages have one entry each
        writes.append(PartWrite(each, maker.state(held), kv, score, store, entries))
    where = {"slots": slots, "positions": positions}
    return maker.fill("step_write", ring, **where, parts=tuple(writes))


def compress_chunk(part: Part, maker: Maker) -> Arguments:
    """A chunk far inside a prompt that ends a begun group, holds two more, and begins another."""
    compressor, _, layout = part
    start = (_last_group(compressor) - 4) * compressor.ratio + 1
    place = {"slot": 2, "start": start, "entries": maker.targets(layout, 3)}
    return _of_part("compress_chunk", part, maker, **place, T=3 * compressor.ratio)


def indexer_query(config: DSV4Config, ratio: int, hadamard: bool, maker: Maker) -> Arguments:
    """Tokens at the first position, at the last, and between."""
    positions = torch.tensor([0, 5, config.max_context_tokens - 1])
    shape = len(positions), config.index_heads
    powers = 2.0 ** maker.whole(-6, 6, *shape, 1)
    queries = (maker.normal(*shape, config.index_dim) * powers).bfloat16()
    turns = rope_rows(config, ratio, positions)
    return maker.fill("indexer_query", None, queries=queries, turns=turns, hadamard=hadamard)


def index_scores(
    config: DSV4Config, keys: PageLayout, block_entries: int | None, maker: Maker
) -> Arguments:
    """All keys, with room after the longest request, or the keys of some blocks."""
    made = maker.tokens(keys)
    lengths = made["lengths"]
    values = maker.normal(_TOKENS, config.index_heads, config.index_dim) * 8
    made["queries"] = values.to(torch.float8_e4m3fn).view(torch.uint8)
    made["blocks"] = maker.blocks(lengths, block_entries) if block_entries else None
    width = 4 * block_entries if block_entries else int(lengths.max()) + _ROOM
    return maker.fill("index_scores", keys, **made, M=width)


def select_blocks(block_entries: int, maker: Maker) -> Arguments:
    """Scores, many of them equal; fewer blocks than top-k, and more."""
    scores, lengths = maker.whole(-3, 4, 4, 70).float(), torch.tensor([9, 70, 1, 0])
    made = {"scores": scores, "lengths": lengths, "block_entries": block_entries}
    return maker.fill("select_blocks", None, **made, N=5)


def select_topk(main: PageLayout, block_entries: int | None, maker: Maker) -> Arguments:
    """Scores, many of them equal, of all entries or of some blocks."""
    made = maker.tokens(main)
    del made["store"]
    lengths = made["lengths"]
    width = 4 * block_entries if block_entries else int(lengths.max())
    made["blocks"] = maker.blocks(lengths, block_entries) if block_entries else None
    made |= {"scores": maker.whole(-20, 20, _TOKENS, width).float(), "page_entries": main.entries}
    return maker.fill("select_topk", None, **made, K=_CHOSEN)


def attend(
    config: DSV4Config,
    ring: PageLayout,
    main: PageLayout | None,
    kind: AttentionType,
    maker: Maker,
) -> Arguments:
    """Windows that are nearly empty, full and turned around; chosen entries or all, or none."""
    slots, entries = torch.tensor([2, 0, 0, 0, 3, -1]), None
    if main:
        made = maker.tokens(main)
        slots, lengths = made["slots"], made["lengths"]
        chosen = _chosen(maker, lengths) if kind is AttentionType.CSA else None
        entries = Entries(made["store"], made["table"], lengths, chosen)
    sinks = maker.normal(config.num_heads)
    sinks[1] = -math.inf
    return maker.fill(
        "attend",
        ring,
        slots=slots,
        tokens=torch.tensor([7, 998, 999, 1000, 0, 9]),
        window=config.window_tokens,
        entries=entries,
        queries=(maker.normal(_TOKENS, config.num_heads, ring.format.dims) / 4).bfloat16(),
        sinks=sinks,
        scale=ring.format.dims**-0.5,
    )


def _chosen(maker: Maker, lengths: Tensor, *, last: bool = False) -> Tensor:
    """Indices, some of them −1, some beyond a token's context and some repeated."""
    indices = maker.whole(0, _LARGEST_INDEX, len(lengths), _INDICES) % (lengths[:, None] + 3)
    indices[:, ::7], indices[:, 3] = -1, indices[:, 2]
    if last:
        indices[:, 1], indices[1, 4] = lengths - 1, _LARGEST_INDEX
    return indices.int()


@dataclass(frozen=True)
class Scene:
    """One call of an operation."""

    operation: str  # name in the table
    subject: str  # what it works on, in words
    format_name: str | None  # of its pages; None without pages
    make: Make  # makes the arguments
    leeway: Leeway = Leeway.NONE  # how far written entries may be from the reference's


def scenes_of(plan: CachePlan, seed: int) -> list[Scene]:
    """Scenes of a cache; layers of one kind share theirs."""
    random = torch.Generator().manual_seed(seed)
    scenes: dict[tuple[str, str], Scene] = {}
    for schema in plan.schemas:
        for scene in (
            *_page_scenes(plan, schema),
            *_read_scenes(plan, schema),
            *_state_scenes(plan, schema, random),
        ):
            scenes.setdefault((scene.operation, scene.subject), scene)
    return list(scenes.values())


def _scene(
    make: Callable[..., Arguments],
    subject: str,
    pages: PageLayout | None,
    *given: Any,
    leeway: Leeway = Leeway.NONE,
) -> Scene:
    form = pages.format.name if pages else None
    return Scene(make.__name__, subject, form, functools.partial(make, *given), leeway)


def _subject(place: str, pages: PageLayout) -> str:
    return f"{place} pages of {pages.entries} {pages.format.name} entries"


def _page_scenes(plan: CachePlan, schema: LayerCacheSchema) -> Iterator[Scene]:
    if ring := schema.window:
        yield _scene(window_insert, _subject("window", ring), ring, ring)
        window = plan.config.window_tokens
        yield _scene(gather_window, _subject("window", ring), ring, ring, window)
    chooses = schema.layer.attn is AttentionType.CSA
    for name, row in OPERATIONS.items():
        for place in row.places:
            pages = schema.main if place == "main" else schema.indexer
            if pages and (chooses or "indices" not in row.names):
                leeway = Leeway.SUM if "hadamard" in row.names and plan.hadamard else Leeway.NONE
                make = functools.partial(on_pages, name, pages, plan.hadamard)
                yield Scene(name, _subject(place, pages), pages.format.name, make, leeway)


def _read_scenes(plan: CachePlan, schema: LayerCacheSchema) -> Iterator[Scene]:
    config, keys, main = plan.config, schema.indexer, schema.main
    if keys and main:
        asked = config, schema.layer.ratio, plan.hadamard
        yield _scene(indexer_query, f"{config.index_heads} heads", None, *asked)
        yield _scene(index_scores, _subject("indexer", keys), keys, config, keys, None)
        yield _scene(select_topk, "scores of all entries", None, main, None)
    if config.candidates and keys and main:
        size = config.candidates.block_entries
        subject = _subject(f"blocks of {size} of indexer", keys)
        yield _scene(index_scores, subject, keys, config, keys, size)
        yield _scene(select_blocks, f"blocks of {size}", None, size)
        yield _scene(select_topk, f"scores of blocks of {size}", None, main, size)
    if ring := schema.window:
        subject = _subject(f"{schema.layer.attn} layers' window", ring)
        yield _scene(attend, subject, ring, config, ring, main, schema.layer.attn)


@functools.lru_cache(maxsize=2)
def _whole_rope(config: DSV4Config, ratio: int, precision: Precision) -> Tensor:
    return make_rope(config, ratio, config.max_context_tokens, precision)


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
        indexer, rope = place == "indexer", _whole_rope(plan.config, schema.layer.ratio, plan.rope)
        compressor = random_compressor(
            plan.config,
            schema.layer,
            random,
            rope=rope,
            indexer=indexer,
            hadamard=indexer and plan.hadamard,
        )
        states, part = f"{place} states of {schema.layer.attn} layers", (compressor, shape, pages)
        leeway = Leeway.ROTATED_SUM if compressor.turns_rounded else Leeway.SUM
        if not shape:
            latents = f"{place} latents"
            yield _scene(norm_rope_insert, latents, pages, part, leeway=leeway)
            continue
        yield _scene(state_append, states, None, part)
        yield _scene(flush, states, pages, part, leeway=leeway)
        yield _scene(compress_chunk, states, pages, part, leeway=leeway)
        parts.append(part)
    if parts and (ring := schema.window):
        subject = f"{schema.layer.attn} layers"
        yield _scene(step_write, subject, ring, ring, parts, leeway=Leeway.SUM)
