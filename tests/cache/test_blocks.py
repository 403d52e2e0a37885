"""Blocks are handed out once, taken back from their holders only, cached, found and evicted."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.cache.blocks import BlockEvent, BlockPool
from dsv4kv.errors import CacheError, NotOwner, OutOfBlocks
from tests.cache.caches import chain, ids, state


def refuses(
    pool: BlockPool,
    call: Callable[[], object],
    reason: str = "Nothing was changed",
    error: type[CacheError] = NotOwner,
) -> None:
    before = state(pool)
    with pytest.raises(error, match=reason):
        call()
    assert state(pool) == before


@pytest.mark.parametrize("count", [5, -1])
def test_more_than_is_free_is_refused(count: int) -> None:
    pool = BlockPool(8)
    pool.acquire(4)
    sentence = f"{count} blocks are needed and 4 of 8 are free"
    refuses(pool, lambda: pool.acquire(count), sentence, OutOfBlocks)


@given(block=st.integers(-(2**63), 2**63 - 1).filter(lambda block: not 0 <= block < 4))
def test_an_id_outside_the_pool_is_refused(block: int) -> None:
    pool = BlockPool(4)
    taken = pool.acquire(4)
    taken[2] = block
    for call in (pool.release, pool.retain, pool.check_held, pool.generation):
        refuses(pool, partial(call, taken))


@pytest.mark.parametrize(
    ("blocks", "hashes", "parents", "reason"),
    [
        ([1], [7], [0], "has hash 10 and cannot get 7"),
        ([2, 2], [7, 8], [0, 7], "has hash 7 and cannot get 8"),
        ([2], [0], [0], "no hashes"),
        ([2], [-1], [0], "no hashes"),
        ([2], [7], [6], "to follow hash 6, which no block has"),
        ([2], [7, 8], [0, 7], "give one of each"),
        ([3], [7], [0], "not all are held"),
    ],
)
def test_hashes_that_cannot_be_are_refused(
    blocks: list[int], hashes: Sequence[int], parents: Sequence[int], reason: str
) -> None:
    pool = BlockPool(5)
    chain(pool, 10, 11)
    pool.acquire(1)
    before = state(pool)
    refuses(pool, lambda: pool.register(ids(*blocks), hashes, parents), reason, CacheError)
    pool.register(ids(1, 0), [10, 11], [0, 10])  # again: nothing new
    assert state(pool) == before


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=5))
def test_chains_evicted_together_go_as_one_by_one(prompts: list[tuple[int, int]]) -> None:
    """``prompts``: blocks shared with the first prompt, and blocks of their own after them."""
    pools, freed = (BlockPool(200), BlockPool(200)), (list[int](), list[int]())
    for pool, gone in zip(pools, freed, strict=True):
        pool.on_freed = lambda blocks, gone=gone: gone.extend(blocks.tolist())
        for number, (shared, own) in enumerate(prompts):
            first = range(1, 1 + (prompts[0][1] if number else 0))[:shared]
            hashes = [*first, *range(100 * number + len(first) + 1, 100 * number + own + 1)]
            matched = pool.find(hashes)
            blocks = pool.allocate(len(hashes) + 1 - len(matched), matched)
            assert blocks is not None
            whole = np.concatenate([matched, blocks])
            pool.register(whole[:-1], hashes, [0, *hashes[:-1]])
            pool.release(whole)
    cached = pools[0].num_cached
    assert pools[0].evict(cached)
    assert all(pools[1].evict(1) for _ in range(cached))
    assert freed[0] == freed[1]
    assert state(pools[0]) == state(pools[1])


def test_events_say_what_happened_to_which_blocks_by_which_hashes() -> None:
    pool, events = BlockPool(3), list[BlockEvent]()
    pool.observers.append(events.append)
    taken = chain(pool, 10, 11)
    pool.retain(taken[:1])
    pool.release(taken[:1])
    pool.release(taken)
    pool.acquire(2)
    pool.reset()
    assert [(event.kind, event.ids.tolist(), event.hashes) for event in events] == [
        ("acquired", [1, 0] if taken[0] else [0, 1], ()),
        ("registered", taken.tolist(), (10, 11)),
        ("retained", [taken[0]], ()),
        ("released", [taken[0]], ()),
        ("released", taken.tolist(), ()),
        ("evicted", [taken[1]], (11,)),
        ("acquired", events[6].ids.tolist(), ()),
        ("reset", [0, 1, 2], ()),
    ]
