"""Paused requests keep to a budget and resume in order; experts are kept with their blocks."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.block_system import (
    KVBlockAllocator,
    PausedRequests,
    Routing,
    RoutingStore,
    names_of,
    resumable_blocks,
)
from dsv4kv.cache.blocks import BlockPool
from dsv4kv.errors import CacheError, ConfigError, NotOwner
from tests.cache.caches import chain, ids


def test_blocks_are_counted_once_however_many_requests_share_them() -> None:
    blocks = KVBlockAllocator(10 + 1, 5, (4, 1, 1))
    pool, paused = blocks.pool, blocks.paused
    shared, a, b, c = pool.acquire(2), *(pool.acquire(1) for _ in range(3))
    pool.retain(np.concatenate([shared, shared]))
    paused.pause("a", np.concatenate([shared, a]))
    paused.pause("b", np.concatenate([shared, b]))
    # The running request c holds the shared blocks, too: they are active.
    assert (blocks.get_total_used(), blocks.is_memory_available(5)) == (5, True)
    assert (blocks.get_active_used(), blocks.get_active_avail()) == (3, 2)
    assert (blocks.get_paused_used(), blocks.get_paused_avail()) == (2, 3)
    pool.release(np.concatenate([shared, c]))
    assert (blocks.get_active_used(), blocks.get_active_avail()) == (0, 5)
    assert (blocks.get_paused_used(), blocks.get_paused_avail()) == (4, 1)


@pytest.mark.parametrize("seed", range(60))
def test_no_more_are_evicted_than_a_plain_search_finds(seed: int) -> None:
    draw = Random(seed)
    pool = BlockPool(40)
    running = pool.acquire(draw.randint(1, 12))
    plain: list[tuple[set[int], int]] = []
    paused = PausedRequests(pool, draw.randint(0, 12))
    for name in range(draw.randint(1, 6)):
        known = [block for held, _ in plain for block in held] + running.tolist()
        shared = set(draw.sample(known, draw.randint(0, min(4, len(set(known))))))
        pool.retain(np.array(sorted(shared), np.int64))
        held = np.concatenate([sorted(shared), pool.acquire(draw.randint(1, 5))])
        plain.append((set(held.astype(np.int64).tolist()), draw.randint(1, 3)))
        paused.pause(name, held.astype(np.int64), plain[-1][1])
    pool.acquire(max(0, pool.num_free - draw.randint(0, 3)))  # others that run
    expected = plain_evictions(plain, running.tolist(), pool.num_free, paused.budget)
    evicted = paused.evict_over_budget()
    assert evicted == list(range(len(plain)))[::-1][:expected]
    paused.resume()
    assert paused.num_held <= paused.budget


def plain_evictions(
    paused: list[tuple[set[int], int]], running: list[int], free: int, budget: int
) -> int:
    """The fewest of the newest without which what cannot resume keeps to the budget."""
    for evicted in range(len(paused) + 1):
        kept = paused[: len(paused) - evicted]
        still = set(running).union(*(held for held, _ in kept))
        room = free + len(set[int]().union(*(held for held, _ in paused)) - still)
        able = 0
        while able < len(kept) and sum(missing for _, missing in kept[: able + 1]) <= room:
            able += 1
        active = set(running).union(*(held for held, _ in kept[:able]))
        if len(set[int]().union(*(held for held, _ in kept[able:])) - active) <= budget:
            return evicted
    raise AssertionError("without paused requests nothing is over budget")


def test_pausing_twice_or_without_the_blocks_is_refused() -> None:
    pool = BlockPool(4)
    paused = PausedRequests(pool, budget_blocks=2)
    paused.pause("a", pool.acquire(1))
    with pytest.raises(CacheError, match="request a is paused already"):
        paused.pause("a", ids(0))
    with pytest.raises(NotOwner):
        paused.pause("b", ids(3))
    assert len(paused) == 1


def test_the_newest_can_be_evicted_where_nobody_else_gives_blocks_back() -> None:
    pool = BlockPool(4)
    paused = PausedRequests(pool, budget_blocks=4)
    for name in ("old", "new"):
        paused.pause(name, pool.acquire(2))
    assert paused.evict_over_budget() == []
    assert (paused.evict_newest(), pool.num_free) == ("new", 2)
    assert [name for name, _ in paused.resume()] == ["old"]
    with pytest.raises(CacheError, match="no request is paused"):
        paused.evict_newest()


# ---- experts by block ---------------------------------------------------------------------------

LAYERS, TOP_K = 3, 2


def store(blocks: int = 10) -> tuple[BlockPool, RoutingStore]:
    """Of a pool whose blocks are all held."""
    pool = BlockPool(blocks)
    pool.acquire(blocks)
    return pool, RoutingStore(pool, block_tokens=4, num_layers=LAYERS, top_k=TOP_K)


def routing(tokens: int, first: int = 0) -> Routing:
    size = LAYERS * TOP_K
    numbers = np.arange(first * size, (first + tokens) * size, dtype=np.int16)
    return numbers.reshape(tokens, LAYERS, TOP_K)


def test_what_was_stored_for_a_chain_is_put_together_again_and_is_the_callers_own() -> None:
    _, experts = store()
    experts.store(ids(5, 2, 9), routing(10))
    for total in (0, 1, 4, 7, 10, 10):
        found = experts.reconstruct(ids(5, 2, 9), total)
        assert found is not None
        assert found.tolist() == routing(10)[:total].tolist()
        found[:] = -1
    assert experts.reconstruct(ids(5, 2, 9), 11) is None
    assert experts.reconstruct(ids(5, 3), 5) is None
    assert experts.reconstruct(ids(5), 5) is None


def test_routing_stays_with_a_cached_block_and_goes_with_its_content() -> None:
    pool = BlockPool(2)
    experts = RoutingStore(pool, 4, LAYERS, TOP_K)
    taken = chain(pool, 10, 11)
    experts.store(taken, routing(8))
    pool.release(taken)
    assert experts.reconstruct(taken, 8) is not None
    assert pool.evict(1)  # the last of the chain
    assert experts.of_block(int(taken[1])) is None
    assert experts.of_block(int(taken[0])) is not None
    pool.reset()
    assert experts.of_block(int(taken[0])) is None


def test_routing_is_not_kept_for_the_dummy_block_nor_for_free_ones() -> None:
    pool, experts = store(3)
    pool.release(ids(1))
    experts.store(ids(0, 1, pool.num_blocks), routing(12))
    kept = [block for block in range(4) if experts.of_block(block) is not None]
    assert kept == [0]
    pool.release(ids(0))
    assert not experts._blocks


@pytest.mark.parametrize(("shape", "first"), [((4, 3), 0), ((4, 2, 2), 0), ((5, 3, 2), 0)])
@pytest.mark.parametrize("more", [0, 4, -1])
def test_routing_of_another_shape_or_beyond_its_blocks_is_refused(
    shape: tuple[int, ...], first: int, more: int
) -> None:
    with pytest.raises(ConfigError, match=r"routing must have|do not fit into 1 blocks"):
        store()[1].store(ids(0), np.zeros(shape, dtype=np.int16), first + more)


TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(tokens=TOKENS, at=st.integers(0, 39))
def test_a_changed_token_changes_the_names_from_its_block_on(tokens: list[int], at: int) -> None:
    before = names_of(np.array(tokens, np.int32), 4)
    changed = tokens.copy()
    if at < len(tokens):
        changed[at] ^= 1
    after = names_of(np.array(changed, np.int32), 4)
    first = at // 4 if at < len(tokens) else len(before)
    assert before[:first] == after[:first]
    assert not set(before[first:]) & set(after[first:])


@pytest.mark.parametrize("block_tokens", [1, 2, 16])
def test_a_prompt_resumes_behind_as_many_blocks_as_leave_two_tokens(block_tokens: int) -> None:
    for tokens in range(1, 70):
        for matched in range(tokens // block_tokens + 1):
            found = resumable_blocks(matched, tokens, block_tokens)
            fits = [n for n in range(matched + 1) if tokens - n * block_tokens >= 2]
            assert found == max(fits, default=0)
