"""Attention over window and compressed entries, against another formula of it."""

import math
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, PageLayout
from dsv4kv.ops import cpu
from dsv4kv.ops.contract import Entries
from dsv4kv.ops.storage import PageStore
from tests.ops.reads.scenes import Cache, make_cache, relative_error
from tests.ops.samples import each_backend, generator, random_values, read_entries

HEADS, DIMS, WINDOW, RING = 3, 512, 24, 32
SCALE = DIMS**-0.5
TOKENS = torch.tensor([9, 998, 999, 1000, 700, 0])  # of a request of three tokens, of no request


def make_ring(format_name: str = "fp8_ds_mla") -> PageStore:
    entry = FORMATS["window"][format_name]
    ring = PageStore.allocate(PageLayout(entry, RING), 5, torch.device("cpu"))
    ring.pages.fill_(0xFF)
    values = random_values(entry, 4 * RING, seed=8)
    cpu.entry_insert(ring, (values.float() / 64).bfloat16(), torch.arange(4 * RING))
    return ring


def windows(ring: PageStore, slots: Tensor, tokens: Tensor) -> list[Tensor]:
    """What every token sees of its ring: float64[n, D]."""
    found = []
    for slot, count in zip(slots.tolist(), tokens.tolist(), strict=True):
        positions = range(max(0, count - WINDOW), count if slot >= 0 else 0)
        places = [slot * RING + position % RING for position in positions]
        values = read_entries(ring, places) if places else torch.empty(0, DIMS)
        found.append(values.double())
    return found


def expected(seen: list[Tensor], queries: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """The sink as one more key whose value is nothing: outputs float64[T, H, D], and lse."""
    outputs, sums = [], []
    for values, query in zip(seen, queries.double(), strict=True):
        logits = torch.einsum("hd,nd->hn", query, values) * SCALE
        weights = torch.cat([logits, sinks.double()[:, None]], dim=1).softmax(dim=1)
        weights = weights.nan_to_num(nan=0.0)  # no key and a sink of −inf
        outputs.append(torch.einsum("hn,nd->hd", weights[:, :-1], values))
        sums.append(logits.logsumexp(dim=1) if len(values) else torch.full((HEADS,), math.inf))
    return torch.stack(outputs), torch.stack(sums)


def random_queries(tokens: int, seed: int = 3) -> Tensor:
    return (2 * torch.randn(tokens, HEADS, DIMS, generator=generator(seed))).bfloat16()


def run(
    backend: ModuleType,
    ring: PageStore,
    cache: Cache,
    entries: Entries | None,
    sinks: Tensor,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, outputs and lse; float32 outputs show what is rounded to bf16."""
    tokens = len(cache.slots)
    queries = random_queries(tokens)
    out = torch.full((tokens, HEADS, DIMS), math.nan, dtype=dtype)
    lse = torch.full((tokens, HEADS), math.nan)
    backend.attend(
        ring, cache.slots, TOKENS[:tokens], WINDOW, entries, queries, sinks, SCALE, out, lse
    )
    return queries, out, lse


def all_entries(cache: Cache, indices: Tensor | None = None) -> Entries:
    return Entries(cache.store, cache.table, cache.lengths, indices)


SINKS = torch.tensor([-math.inf, 0.3, 5.0])


@each_backend
@pytest.mark.parametrize("format_name", FORMATS["main"])
def test_attention_is_softmax_over_window_and_all_entries(
    backend: ModuleType, format_name: str
) -> None:
    cache, ring = make_cache(FORMATS["main"][format_name], seed=1), make_ring()
    queries, out, lse = run(backend, ring, cache, all_entries(cache), SINKS)
    near = windows(ring, cache.slots, TOKENS)
    seen = [torch.cat([near[t], cache.seen(t)]) for t in range(len(near))]
    right, sums = expected(seen, queries, SINKS)
    assert relative_error(out, right) < 1e-5
    assert relative_error(lse, sums) < 1e-5


@each_backend
@pytest.mark.parametrize("format_name", FORMATS["window"])
def test_without_compressed_entries_the_window_alone_is_attended_to(
    backend: ModuleType, format_name: str
) -> None:
    cache, ring = make_cache(FORMATS["main"]["bf16"], seed=2), make_ring(format_name)
    queries, out, lse = run(backend, ring, cache, None, SINKS)
    right, sums = expected(windows(ring, cache.slots, TOKENS), queries, SINKS)
    assert relative_error(out, right) < 1e-5
    assert relative_error(lse, sums) < 1e-5


@each_backend
def test_chosen_entries_count_as_often_as_they_are_named_and_none_that_is_not_seen(
    backend: ModuleType,
) -> None:
    cache, ring = make_cache(FORMATS["main"]["fp8_ds_mla"], seed=3), make_ring()
    indices = torch.randint(-1, 110, (6, 40), generator=generator(4), dtype=torch.int32)
    indices[:, 7], indices[:, 9], indices[0, 3] = indices[:, 8], -1, 2**31 - 1
    queries, out, lse = run(backend, ring, cache, all_entries(cache, indices), SINKS)
    near, seen = windows(ring, cache.slots, TOKENS), []
    for t, row in enumerate(indices.tolist()):
        visible = cache.seen(t)
        chosen = [visible[i] for i in row if 0 <= i < len(visible)]
        seen.append(torch.cat([near[t], *(each[None] for each in chosen)]))
    right, sums = expected(seen, queries, SINKS)
    assert relative_error(out, right) < 1e-5
    assert relative_error(lse, sums) < 1e-5


@each_backend
def test_a_token_that_sees_nothing_gives_zeros_and_an_lse_of_plus_infinity(
    backend: ModuleType,
) -> None:
    cache = make_cache(FORMATS["main"]["bf16"], seed=5)
    _, out, lse = run(backend, make_ring(), cache, all_entries(cache), SINKS, torch.bfloat16)
    for t in (4, 5):  # a token of no request, and one of a request without tokens
        assert not out[t].count_nonzero()
        assert (lse[t] == math.inf).all()


@each_backend
def test_a_sink_of_plus_infinity_leaves_nothing_and_lse_as_it_is(backend: ModuleType) -> None:
    cache = make_cache(FORMATS["main"]["bf16"], seed=6)
    sinks = torch.tensor([math.inf, -math.inf, 0.0])
    _, out, lse = run(backend, make_ring(), cache, all_entries(cache), sinks)
    _, _, without = run(
        backend, make_ring(), cache, all_entries(cache), torch.full((3,), -math.inf)
    )
    assert not out[:, 0].count_nonzero()
    assert out[0, 1].count_nonzero()
    assert torch.equal(lse, without)


@each_backend
def test_parts_are_merged_by_their_lse(backend: ModuleType) -> None:
    cache, ring = make_cache(FORMATS["main"]["bf16"], seed=7), make_ring()
    nothing = torch.full((3,), -math.inf)
    _, whole, _ = run(backend, ring, cache, all_entries(cache), nothing)
    _, first, a = run(backend, ring, cache, None, nothing)
    empty = replace(cache, slots=cache.slots)
    far = torch.full((6, HEADS, DIMS), math.nan)
    b = torch.full((6, HEADS), math.nan)
    backend.attend(
        ring,
        empty.slots,
        torch.zeros(6, dtype=torch.int64),
        WINDOW,
        all_entries(cache),
        random_queries(6),
        nothing,
        SCALE,
        far,
        b,
    )
    share = torch.softmax(torch.stack([a, b])[:, :4], dim=0)[..., None]
    assert relative_error(share[0] * first[:4] + share[1] * far[:4], whole[:4]) < 1e-5


@each_backend
def test_outputs_are_rounded_to_bf16(backend: ModuleType) -> None:
    cache, ring = make_cache(FORMATS["main"]["fp4"], seed=9), make_ring()
    _, exact, _ = run(backend, ring, cache, all_entries(cache), SINKS)
    _, rounded, _ = run(backend, ring, cache, all_entries(cache), SINKS, torch.bfloat16)
    assert torch.equal(rounded, exact.bfloat16())


@pytest.mark.parametrize("topk", [None, 3000], ids=["all", "chosen"])
def test_more_tokens_and_entries_than_a_piece_takes_are_attended_to(topk: int | None) -> None:
    tokens, random = 30, generator(11)
    cache, ring = make_cache(FORMATS["main"]["fp8"], seed=10), make_ring()
    slots, counts = torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens) + 500
    lengths = torch.arange(tokens) + 20
    indices = torch.randint(-1, 50, (tokens, topk), generator=random).int() if topk else None
    entries = Entries(cache.store, cache.table, lengths, indices)
    queries, sinks = random_queries(tokens), torch.zeros(HEADS)
    results = []
    for together in (True, False):
        out, lse = torch.empty(tokens, HEADS, DIMS), torch.empty(tokens, HEADS)
        for some in [slice(tokens)] if together else [slice(t, t + 1) for t in range(tokens)]:
            chosen = None if indices is None else indices[some]
            seen = replace(entries, lengths=lengths[some], indices=chosen)
            given = (ring, slots[some], counts[some], 128, seen, queries[some], sinks, SCALE)
            cpu.attend(*given, out[some], lse[some])
        results.append((out, lse))
    for mine, right in zip(*results, strict=True):
        assert relative_error(mine, right) < 1e-5
