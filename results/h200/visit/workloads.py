"""What is timed: calls of an operation that share no byte, on data that is never zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4kv.bench.figures import COLD_L2S
from dsv4kv.bench.predict import Card, predict_ns
from dsv4kv.model.config import build_schedule
from dsv4kv.model.formats import EntryFormat, PageLayout, entry_format
from dsv4kv.model.presets import load_model
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.launches import Launch
from dsv4kv.ops.launches.pages import (
    Way,
    plan_compress_chunk,
    plan_entry_insert,
    plan_flush,
    plan_gather_entries,
    plan_gather_topk,
    plan_objects,
    pool_table,
    split_of,
)
from dsv4kv.ops.launches.reads import plan_attend, plan_index_scores, plan_select_topk
from dsv4kv.ops.storage import Compressor, Entries, PageStore, make_rope, random_compressor
from visit.place import Place

MAIN, KEYS = entry_format("main", "fp8_ds_mla"), entry_format("indexer", "fp8")
_PAGE_ENTRIES = 32
_FILLED_AT_ONCE = 8192
_GATHERED_BYTES = 4 + MAIN.entry_bytes + 2 * MAIN.dims  # index and entry in, bf16 values out
_ALIVE: list[list[Tensor]] = []
_LAYERS = {"csa": 2, "hca": 3}  # of V4-Pro


@dataclass(frozen=True)
class Work:
    """Equal calls, each on inputs and outputs of its own.

    Attributes:
        calls: Launches of each call.
        entries: Of one call.
        bytes: Useful bytes of one call.
        flops: Of its products.
    """

    calls: Sequence[tuple[Launch, ...]]
    entries: int
    bytes: int
    flops: int = 0

    def predicted_ns(self, card: Card) -> float:
        """How long a call should take."""
        return predict_ns(self.calls[0], self.bytes, self.flops, card)


def gather(place: Place, count: int, *, scattered: bool = True, **how: Any) -> Work:
    """Gathers of ``count`` physical entries."""
    moved = count * _GATHERED_BYTES
    calls = _calls(place, moved)
    store = _filled(place, calls * count)
    entries = _order(place, calls * count, scattered=scattered).int().view(calls, count)
    out = _output(place, calls, count)
    plans = [(plan_gather_entries(store, entries[k], out[k], **how),) for k in range(calls)]
    return Work(plans, count, moved)


def topk(place: Place, requests: int, chosen: int, **how: Any) -> Work:
    """Top-k gathers of requests of 8,192 tokens of CSA."""
    moved = requests * chosen * _GATHERED_BYTES
    calls, held = _calls(place, moved), place.size(2048, max(64, chosen))
    width = held // _PAGE_ENTRIES
    store = _filled(place, calls * requests * held)
    tables = _order(place, len(store.pages)).int().view(calls, requests, width)
    indices = _choices(place, calls, requests, held, chosen)
    slots = torch.arange(requests, device=indices.device)
    lengths = torch.full_like(slots, held)
    out = _output(place, calls, requests, chosen)
    plans = [
        (plan_gather_topk(store, tables[k], slots, indices[k], lengths, out[k], **how),)
        for k in range(calls)
    ]
    return Work(plans, requests * chosen, moved)


def attend(
    place: Place, requests: int, read: int, heads: int, *, every: bool = False, **how: Any
) -> Work:
    """Attention of V4-Pro's heads to a window and to so many of 2,048 entries, or to all."""
    model, chosen = load_model("v4-pro"), read
    window, device = model.window_tokens, place.device.device
    read = requests * (window + chosen)
    moved = read * MAIN.entry_bytes + requests * chosen * 4
    moved += requests * (8 + heads * (4 * MAIN.dims + 4))
    calls = _calls(place, moved)
    held = -(-chosen // _PAGE_ENTRIES) * _PAGE_ENTRIES
    held = held if every else place.size(2048, max(64, chosen))
    store, rings = _filled(place, calls * requests * held), calls * requests
    ring = _filled(place, rings * window, window)
    tables = _order(place, len(store.pages)).int().view(calls, requests, held // _PAGE_ENTRIES)
    indices = _choices(place, calls, requests, held, chosen)
    slots = torch.arange(requests, device=device)
    tokens, lengths = torch.full_like(slots, 4 * held), torch.full_like(slots, held)
    queries = _output(place, requests, heads).normal_()
    out, sinks = _output(place, calls, requests, heads), torch.zeros(heads, device=device)
    lse = torch.empty(calls, requests, heads, device=device)
    plans = []
    for k in range(calls):
        own = PageStore(ring.layout, ring.pages[k * requests : (k + 1) * requests])
        entries = Entries(store, tables[k], lengths, None if every else indices[k])
        asked = own, slots, tokens, window, entries, queries, sinks, MAIN.dims**-0.5
        plans.append(plan_attend(*asked, out[k], lse[k], **how))
    return Work(plans, read, moved, 4 * read * heads * MAIN.dims)


def scores(place: Place, requests: int, keys: int) -> Work:
    """Scores of one query token of each request, against so many FP8 keys of its own."""
    model, device = load_model("v4-pro"), place.device.device
    heads, count, width = model.index_heads, requests * keys, -(-keys // _PAGE_ENTRIES)
    moved = count * (KEYS.entry_bytes + 4) + requests * (width * 4 + heads * (KEYS.dims + 4))
    calls = _calls(place, moved)
    store = _filled(place, calls * requests * width * _PAGE_ENTRIES, entry=KEYS)
    tables = _order(place, len(store.pages)).int().view(calls, requests, width)
    slots = torch.arange(requests, device=device)
    lengths = torch.full_like(slots, keys)
    queries = torch.randn(requests, heads, KEYS.dims, device=device) * 8
    codes = queries.to(torch.float8_e4m3fn).view(torch.uint8)
    weights = torch.randn(requests, heads, device=device)
    out = torch.empty(calls, requests, keys, device=device)
    plans = [
        (plan_index_scores(store, tables[k], slots, lengths, codes, weights, None, out[k]),)
        for k in range(calls)
    ]
    return Work(plans, count, moved, 2 * count * heads * KEYS.dims)


def select(place: Place, requests: int, columns: int) -> Work:
    """V4-Pro's top k of a row of scores of each request."""
    chosen, device = min(columns, load_model("v4-pro").index_topk), place.device.device
    moved = requests * (columns + 2 * chosen) * 4
    calls, width = _calls(place, moved), -(-columns // _PAGE_ENTRIES)
    rows = torch.randn(calls, requests, columns, device=device)
    table = _order(place, requests * width).int().view(requests, width)
    slots = torch.arange(requests, device=device)
    lengths = torch.full_like(slots, columns)
    out = torch.empty(2, requests, chosen, dtype=torch.int32, device=device)
    asked = table, slots, _PAGE_ENTRIES, out[0], out[1]
    plans = [plan_select_topk(rows[k], lengths, None, *asked) for k in range(calls)]
    return Work(plans, requests * columns, moved)


def objects(place: Place, way: Way, count: int) -> Work:
    """Pages of all layers of V4-Pro that go to or come from a tier's objects."""
    layers, device = place.size(61, 2), place.device.device
    piece = PageLayout(MAIN, _PAGE_ENTRIES).page_bytes // 16 * 16
    moved = 2 * layers * count * piece
    calls = _calls(place, moved)
    pools = list(torch.empty(layers, calls * count, piece, dtype=torch.uint8, device=device))
    table = torch.empty(2, layers, dtype=torch.int64, device=device)
    if device.type != "meta":
        table = pool_table([pool.random_(0, 256) for pool in pools])
    rows = torch.empty(count, layers * piece, dtype=torch.uint8, device=device).random_(0, 256)
    ids = _order(place, calls * count).view(calls, 1, count).expand(-1, layers, -1).contiguous()
    plans = [
        (plan_objects(way, table, ids[k], rows, piece, layers * piece),) for k in range(calls)
    ]
    _ALIVE.append(pools)  # a table has their addresses alone
    return Work(plans, layers * count, moved)


def insert(place: Place, count: int, **how: Any) -> Work:
    """Inserts of ``count`` scattered entries."""
    moved = count * (2 * MAIN.dims + 8 + MAIN.entry_bytes)
    calls = _calls(place, moved)
    store = _filled(place, calls * count)
    entries = _order(place, calls * count).view(calls, count)
    values = _output(place, calls, count).normal_()
    plans = [(plan_entry_insert(store, values[k], entries[k], **how),) for k in range(calls)]
    return Work(plans, count, moved)


def flush(place: Place, kind: str, tokens: int, split: int | None = None, **how: Any) -> Work:
    """Flushes of all entries of ``tokens`` tokens, from random states."""
    compressor = _compressor(place, kind, tokens)
    count, rows = tokens // compressor.ratio, compressor.rows
    moved = count * (rows * compressor.dim * 2 * 4 + MAIN.entry_bytes)
    calls, device = _calls(place, moved), place.device.device
    store = _filled(place, calls * count)
    entries = _order(place, calls * count).view(calls, count)
    states = torch.randn(calls, count, 2, rows, compressor.channels, device=device)
    slots = torch.arange(count, device=device)
    ends = torch.full_like(slots, 2 * compressor.ratio - 1)
    scratch = torch.empty(count, compressor.dim, device=device)
    how |= {"split": split or split_of(compressor), "scratch": scratch}
    plans = [
        plan_flush(compressor, states[k], slots, ends, store, entries[k], **how)
        for k in range(calls)
    ]
    return Work(plans, count, moved)


def chunk(place: Place, kind: str, tokens: int, **how: Any) -> Work:
    """Chunks of ``tokens`` tokens of one request."""
    compressor = _compressor(place, kind, tokens)
    count, rows, device = tokens // compressor.ratio, compressor.rows, place.device.device
    moved = (tokens + min(tokens, rows)) * compressor.channels * 2 * 4 + count * MAIN.entry_bytes
    calls = _calls(place, moved)
    store = _filled(place, calls * count)
    entries = _order(place, calls * count).view(calls, count)
    states = torch.randn(calls, 1, 2, rows, compressor.channels, device=device)
    kv, score = torch.randn(2, calls, tokens, compressor.channels, device=device)
    numbers = torch.tensor([0, 0, tokens], device=device)
    scratch = torch.empty(count, compressor.dim, device=device)
    how |= {"split": split_of(compressor), "scratch": scratch}
    plans = [
        plan_compress_chunk(
            compressor, states[k], kv[k], score[k], numbers, store, entries[k], **how
        )
        for k in range(calls)
    ]
    return Work(plans, tokens, moved)


def _calls(place: Place, moved: int) -> int:
    """As many as it takes for a byte to have left the caches before it is used again."""
    return max(2, math.ceil(COLD_L2S * place.device.l2_bytes / moved))


def _generator(place: Place) -> torch.Generator | None:
    device = place.device.device
    return None if device.type == "meta" else torch.Generator(device).manual_seed(0)


def _order(place: Place, count: int, *, scattered: bool = True) -> Tensor:
    device = place.device.device
    if scattered:
        return torch.randperm(count, generator=_generator(place), device=device)
    return torch.arange(count, device=device)


def _choices(place: Place, calls: int, requests: int, held: int, chosen: int) -> Tensor:
    device = place.device.device
    chances = torch.rand(calls, requests, held, generator=_generator(place), device=device)
    return chances.argsort(2)[:, :, :chosen].int().contiguous()


def _output(place: Place, *shape: int) -> Tensor:
    return torch.empty(*shape, MAIN.dims, dtype=torch.bfloat16, device=place.device.device)


def _compressor(place: Place, kind: str, tokens: int) -> Compressor:
    model = load_model("v4-pro")
    layer = build_schedule(model)[_LAYERS[kind]]
    rope = make_rope(model, layer.ratio, max(tokens, 2 * layer.ratio), "float32")
    drawn = torch.Generator().manual_seed(0)
    return random_compressor(model, layer, drawn, rope=rope).to(place.device.device)


def _filled(
    place: Place, entries: int, page_entries: int = _PAGE_ENTRIES, entry: EntryFormat = MAIN
) -> PageStore:
    """Pages of quantised normal data for so many entries."""
    pages, device = -(-entries // page_entries), place.device.device
    store = PageStore.allocate(PageLayout(entry, page_entries), pages, device)
    if device.type == "meta":
        return store
    values = torch.randn(min(_FILLED_AT_ONCE, store.num_entries), entry.dims, device=device)
    values = values.bfloat16()
    for first in range(0, store.num_entries, len(values)):
        rows = torch.arange(first, min(first + len(values), store.num_entries), device=device)
        prepare(plan_entry_insert(store, values[: len(rows)], rows))()
    return store
