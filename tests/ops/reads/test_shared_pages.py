"""Pages that several requests read, and that are twice in one table, are read like any other."""

from types import ModuleType

import pytest
import torch

from dsv4kv.model.formats import FORMATS
from tests.ops.reads import test_attend as attention
from tests.ops.reads import test_index_scores as scoring
from tests.ops.reads.scenes import PAGE_ENTRIES, make_cache, relative_error, share_pages
from tests.ops.samples import each_backend, generator


@each_backend
def test_keys_of_shared_pages_are_scored_at_every_place(backend: ModuleType) -> None:
    cache = share_pages(make_cache(FORMATS["indexer"]["mxfp4"], seed=1))
    queries, weights = scoring.random_query(6, seed=2)
    out = torch.empty(6, int(cache.lengths.max()))
    where = cache.store, cache.table, cache.slots, cache.lengths
    backend.index_scores(*where, queries, weights, None, out)
    right = torch.full(out.shape, -torch.inf, dtype=torch.float64)
    for t, scores in enumerate(scoring.expected(cache, queries, weights)):
        right[t, : len(scores)] = scores
    assert relative_error(out, right) < 1e-5


@each_backend
def test_an_entry_that_is_in_two_blocks_is_chosen_in_the_first_and_has_one_place(
    backend: ModuleType,
) -> None:
    cache = share_pages(make_cache(FORMATS["indexer"]["mxfp4"], seed=3))
    scores = torch.randn(6, 2 * PAGE_ENTRIES, generator=generator(4))
    scores[:, PAGE_ENTRIES:] = scores[:, :PAGE_ENTRIES]  # as those of one page twice are
    lengths = cache.lengths.clamp(max=2 * PAGE_ENTRIES)
    found, entries = torch.empty(2, 6, 5, dtype=torch.int32)
    where = lengths, None, cache.table, cache.slots, PAGE_ENTRIES
    backend.select_topk(scores, *where, found, entries)
    for t in range(1, 4):  # 60 entries and more, each score twice but for the last
        seen = scores[t, : lengths[t]].tolist()
        best = sorted(sorted(range(len(seen)), key=lambda i: (-seen[i], i))[:5])
        page = int(cache.table[0, 0]) * PAGE_ENTRIES
        assert found[t].tolist() == best
        assert entries[t].tolist() == [page + i % PAGE_ENTRIES for i in best]


@each_backend
@pytest.mark.parametrize("chosen", [False, True], ids=["all", "chosen"])
def test_entries_of_shared_pages_count_at_every_place(backend: ModuleType, chosen: bool) -> None:
    cache = share_pages(make_cache(FORMATS["main"]["fp8_ds_mla"], seed=5))
    indices = torch.randint(-1, 110, (6, 40), generator=generator(6), dtype=torch.int32)
    indices[:, 1] = indices[:, 0] + PAGE_ENTRIES
    ring, sinks = attention.make_ring(), attention.SINKS
    entries = attention.all_entries(cache, indices if chosen else None)
    queries, out, lse = attention.run(backend, ring, cache, entries, sinks)
    near, seen = attention.windows(ring, cache.slots, attention.TOKENS), []
    for t, row in enumerate(indices.tolist()):
        visible = cache.seen(t)
        places = [i for i in row if 0 <= i < len(visible)] if chosen else range(len(visible))
        seen.append(torch.cat([near[t], *(visible[i][None] for i in places)]))
    right, sums = attention.expected(seen, queries, sinks)
    assert relative_error(out, right) < 1e-5
    assert relative_error(lse, sums) < 1e-5
