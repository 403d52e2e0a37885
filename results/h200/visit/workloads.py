"""What is timed: calls of an operation that share no byte, on data that is never zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4kv.bench.figures import COLD_L2S
from dsv4kv.model.formats import PageLayout, entry_format
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule
from dsv4kv.ops import spec
from dsv4kv.ops.compressor import Compressor, make_rope, random_compressor
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.launches.attend import plan_attend
from dsv4kv.ops.launches.launch import Launch
from dsv4kv.ops.launches.pages import plan_entry_insert, plan_gather_entries, plan_gather_topk
from dsv4kv.ops.launches.state import plan_compress_chunk, plan_flush, split_of
from dsv4kv.ops.storage import Entries, PageStore
from visit.place import Place

MAIN = entry_format("main", "fp8_ds_mla")
_PAGE_ENTRIES = 32
_FILLED_AT_ONCE = 8192
_LAYERS = {"csa": 2, "hca": 3}  # of V4-Pro


@dataclass(frozen=True)
class Work:
    """Equal calls, each on inputs and outputs of its own.

    Attributes:
        calls: Launches of each call.
        entries: Of one call.
        bytes: Useful bytes of one call.
    """

    calls: Sequence[tuple[Launch, ...]]
    entries: int
    bytes: int


def gather(place: Place, count: int, *, scattered: bool = True, **how: Any) -> Work:
    """Gathers of ``count`` physical entries."""
    moved = spec.gather_topk_bytes(MAIN, count, count)
    calls = _calls(place, moved)
    store = _filled(place, calls * count)
    entries = _order(place, calls * count, scattered=scattered).int().view(calls, count)
    out = _output(place, calls, count)
    plans = [(plan_gather_entries(store, entries[k], out[k], **how),) for k in range(calls)]
    return Work(plans, count, moved)


def topk(place: Place, requests: int, chosen: int, **how: Any) -> Work:
    """Top-k gathers of requests of 8,192 tokens of CSA."""
    moved = spec.gather_topk_bytes(MAIN, requests * chosen, requests * chosen)
    calls, held = _calls(place, moved), place.size(2048, max(64, chosen))
    width = held // _PAGE_ENTRIES
    store = _filled(place, calls * requests * held)
    tables = _order(place, len(store.pages)).int().view(calls, requests, width)
    choices = torch.rand(calls * requests, held, generator=_generator()).argsort(1)[:, :chosen]
    indices = choices.int().to(store.pages.device).view(calls, requests, chosen)
    slots = torch.arange(requests, device=indices.device)
    lengths = torch.full_like(slots, held)
    out = _output(place, calls, requests, chosen)
    plans = [
        (plan_gather_topk(store, tables[k], slots, indices[k], lengths, out[k], **how),)
        for k in range(calls)
    ]
    return Work(plans, requests * chosen, moved)


def attend(place: Place, requests: int, chosen: int, heads: int, **how: Any) -> Work:
    """Attention of V4-Pro's heads to a window and chosen entries of requests of 8,192 tokens."""
    model = load_model("v4-pro")
    window, device = model.window_tokens, place.device.device
    read = requests * (window + chosen)
    moved = MAIN.entry_bytes * read + 4 * requests * heads * MAIN.dims
    calls, held = _calls(place, moved), place.size(2048, max(64, chosen))
    store, rings = _filled(place, calls * requests * held), calls * requests
    ring = _filled(place, rings * window, window)
    tables = _order(place, len(store.pages)).int().view(calls, requests, held // _PAGE_ENTRIES)
    choices = torch.rand(rings, held, generator=_generator()).argsort(1)[:, :chosen]
    indices = choices.int().to(device).view(calls, requests, chosen)
    slots = torch.arange(requests, device=device)
    tokens, lengths = torch.full_like(slots, 4 * held), torch.full_like(slots, held)
    queries = _output(place, requests, heads).normal_()
    out, sinks = _output(place, calls, requests, heads), torch.zeros(heads, device=device)
    lse = torch.empty(calls, requests, heads, device=device)
    plans = []
    for k in range(calls):
        own = PageStore(ring.layout, ring.pages[k * requests : (k + 1) * requests])
        entries = Entries(store, tables[k], lengths, indices[k])
        asked = own, slots, tokens, window, entries, queries, sinks, MAIN.dims**-0.5
        plans.append(plan_attend(*asked, out[k], lse[k], **how))
    return Work(plans, read, moved)


def insert(place: Place, count: int, **how: Any) -> Work:
    """Inserts of ``count`` scattered entries."""
    moved = spec.insert_bytes(MAIN, count)
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
    moved = spec.flush_bytes(compressor, MAIN, count, online=False)
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
    moved = spec.compress_chunk_bytes(compressor, MAIN, tokens, count, rows)
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


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _order(place: Place, count: int, *, scattered: bool = True) -> Tensor:
    numbers = torch.randperm(count, generator=_generator()) if scattered else torch.arange(count)
    return numbers.to(place.device.device)


def _output(place: Place, *shape: int) -> Tensor:
    return torch.empty(*shape, MAIN.dims, dtype=torch.bfloat16, device=place.device.device)


def _compressor(place: Place, kind: str, tokens: int) -> Compressor:
    model = load_model("v4-pro")
    layer = build_schedule(model)[_LAYERS[kind]]
    rope = make_rope(model, layer.ratio, max(tokens, 2 * layer.ratio), "float32")
    return random_compressor(model, layer, _generator(), rope=rope).to(place.device.device)


def _filled(place: Place, entries: int, page_entries: int = _PAGE_ENTRIES) -> PageStore:
    """Pages of quantised normal data for so many entries."""
    pages, device = -(-entries // page_entries), place.device.device
    store = PageStore.allocate(PageLayout(MAIN, page_entries), pages, device)
    values = _output(place, min(_FILLED_AT_ONCE, store.num_entries)).normal_()
    for first in range(0, store.num_entries, len(values)):
        rows = torch.arange(first, min(first + len(values), store.num_entries), device=device)
        prepare(plan_entry_insert(store, values[: len(rows)], rows))()
    return store
