"""How a request's tokens arrive makes no difference to its entries: not in a single bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.ops import samples
from tests.ops.streams import Request, partitions

# Ratio, longest piece and most pieces: pieces go well beyond a ring of 8 or 128 rows.
SIZES = {"csa": (4, 30, 8), "indexer": (4, 30, 8), "hca": (128, 300, 4)}
ENTRIES = 64  # more than any of these requests completes

seeds = st.integers(0, 2**32 - 1)
each_kind = pytest.mark.parametrize("kind", SIZES)
each_drafts = pytest.mark.parametrize("drafts", [0, 3])
some = examples(60)


def _request(kind: str, count: int, seed: int, drafts: int) -> Request:
    compressor = samples.full_size_compressor(kind)
    store = samples.poisoned_store(samples.bf16_entry(compressor), entries=ENTRIES, pages=1)
    state = samples.fresh_ring(compressor, drafts=drafts)
    return Request(compressor, state, store, *samples.random_tokens(compressor, count, seed))


def _equal(a: Request, b: Request) -> bool:
    return torch.equal(a.store.pages, b.store.pages) and torch.equal(a.state, b.state)


@each_drafts
@each_kind
@some
@given(data=st.data(), seed=seeds)
def test_chunks_and_tokens_in_turns_give_equal_pages_and_states(
    kind: str, drafts: int, data: st.DataObject, seed: int
) -> None:
    sizes = data.draw(partitions(*SIZES[kind]))
    ways = data.draw(
        st.lists(st.sampled_from(["append", "chunk"]), min_size=len(sizes), max_size=len(sizes))
    )
    mixed, whole = (_request(kind, sum(sizes), seed, drafts) for _ in range(2))
    mixed.feed(zip(ways, sizes, strict=True))
    whole.chunk(sum(sizes))
    assert _equal(mixed, whole)
