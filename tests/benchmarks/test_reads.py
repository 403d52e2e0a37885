"""Scores and attention on one CPU thread, against the matrix products alone in the same run."""

import statistics
from collections.abc import Callable
from time import perf_counter_ns

import pytest
import torch

from dsv4kv.model.formats import FORMATS, EntryFormat, PageLayout
from dsv4kv.ops import reference
from dsv4kv.ops.registry import load_backend
from dsv4kv.ops.storage import Entries, PageStore
from tests.benchmarks.medians import Measure, Remark

POOL_BYTES, PAGE, REQUESTS, ROUNDS = 2**28, 32, 4, 10
KEYS, ENTRIES, WINDOW = 32_768, 8_192, 128  # of a request of 128K tokens, and of 1M in HCA layers

cpu = load_backend("cpu")


def fill(entry: EntryFormat, page_entries: int, pool_bytes: int) -> PageStore:
    layout = PageLayout(entry, page_entries)
    store = PageStore.allocate(layout, -(-pool_bytes // layout.page_bytes), torch.device("cpu"))
    values = torch.randn(4096, entry.dims, generator=torch.Generator().manual_seed(0)).bfloat16()
    for first in range(0, store.num_entries, len(values)):
        cpu.entry_insert(store, values, torch.arange(first, first + len(values)))
    return store


def scattered(store: PageStore, entries: int) -> torch.Tensor:
    """Blocks of every request, anywhere in the pool: int32[REQUESTS, entries / PAGE]."""
    order = torch.randperm(len(store.pages), generator=torch.Generator().manual_seed(1))
    return order[: REQUESTS * entries // PAGE].view(REQUESTS, -1).int()


def compare(
    measure: Measure,
    remark: Remark,
    group: str,
    ours: Callable[[], object],
    products: Callable[[], object],
) -> None:
    """Print which share of a float32 matmul's rate ours reaches, softmax and decoding included."""
    median_ns = measure(group, "ours", ours, rounds=ROUNDS)
    if median_ns is None:
        return
    alone = []
    for _ in range(ROUNDS):
        start = perf_counter_ns()
        products()
        alone.append(perf_counter_ns() - start)
    share = 100 * statistics.median(alone) / median_ns
    remark(f"{group}: {share:.0f} % of torch.matmul in float32 of the same FLOPs")


@pytest.mark.parametrize("format_name", ["fp8", "mxfp4"])
def test_index_scores(measure: Measure, remark: Remark, format_name: str) -> None:
    heads, random = 64, torch.Generator().manual_seed(2)
    store = fill(FORMATS["indexer"][format_name], PAGE, POOL_BYTES)
    table, slots = scattered(store, KEYS), torch.arange(REQUESTS)
    values = 8 * torch.randn(REQUESTS, heads, 128, generator=random)
    queries = values.to(torch.float8_e4m3fn).view(torch.uint8)
    weights = torch.randn(REQUESTS, heads, generator=random)
    out, lengths = torch.empty(REQUESTS, KEYS), torch.full((REQUESTS,), KEYS)
    keys = torch.randn(KEYS, 128, generator=random)

    def score() -> None:
        cpu.index_scores(store, table, slots, lengths, queries, weights, None, out)

    def products() -> None:
        for query in values:
            query @ keys.T

    group = f"scores of {heads} heads, {REQUESTS} x {KEYS:,} {format_name} keys"
    compare(measure, remark, group, score, products)
    score()
    few, expected = lengths[:1] * 0 + 64, torch.empty(1, 64)
    reference.index_scores(store, table, slots[:1], few, queries[:1], weights[:1], None, expected)
    torch.testing.assert_close(out[:1, :64], expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("heads", [64, 128])
@pytest.mark.parametrize("topk", [1024, None], ids=["chosen", "all"])
def test_attend(measure: Measure, remark: Remark, topk: int | None, heads: int) -> None:
    random = torch.Generator().manual_seed(3)
    store = fill(FORMATS["main"]["fp8_ds_mla"], PAGE, POOL_BYTES)
    ring = fill(FORMATS["window"]["fp8_ds_mla"], WINDOW, REQUESTS * 2**17)
    table, slots = scattered(store, ENTRIES), torch.arange(REQUESTS)
    lengths, tokens = torch.full((REQUESTS,), ENTRIES), torch.full((REQUESTS,), 1_000_000)
    order = [torch.randperm(ENTRIES, generator=random)[:topk] for _ in range(REQUESTS)]
    indices = torch.stack(order).sort(dim=1).values.int() if topk else None
    queries = (torch.randn(REQUESTS, heads, 512, generator=random) / 4).bfloat16()
    sinks = torch.randn(heads, generator=random)
    out, lse = torch.empty_like(queries), torch.empty(REQUESTS, heads)
    seen = Entries(store, table, lengths, indices)
    count = WINDOW + (topk or ENTRIES)
    values, shares = (torch.randn(count, size, generator=random) for size in (512, heads))

    def attend() -> None:
        cpu.attend(ring, slots, tokens, WINDOW, seen, queries, sinks, 512**-0.5, out, lse)

    def products() -> None:
        for query in queries.float():
            query @ values.T
            shares.T @ values

    which = f"{topk:,} chosen" if topk else f"all {ENTRIES:,}"
    group = f"attention of {heads} heads, {REQUESTS} x {which} entries and the window"
    compare(measure, remark, group, attend, products)
    attend()
    near = Entries(store, table[:1], lengths[:1] * 0 + 5, None)
    few = (ring, slots[:1], tokens[:1], WINDOW, near, queries[:1], sinks, 512**-0.5)
    results = [(torch.empty(1, heads, 512), torch.empty(1, heads)) for _ in range(2)]
    for backend, result in zip((cpu, reference), results, strict=True):
        backend.attend(*few, *result)
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)
