"""vLLM's cache asked directly: what decoding keeps, what is evicted, what a refusal leaves."""

import pytest

from dsv4kv.core.hashed import Group, HashedCache, Part
from dsv4kv.core.pool import BlockPool
from dsv4kv.core.served import Hit, Served
from dsv4kv.errors import OutOfBlocks

PAGE = 4
Prompt = list[int]


def open_cache(prompts: list[Prompt], blocks: int, retention: int | None = None) -> HashedCache:
    """A cache with a group of blocks of two tokens and one of single tokens, of which two stay."""
    groups = [
        Group(size, needed, needed * size, True, [Part(needed, 0, False, False)])
        for size, needed in ((2, 1), (1, 2))
    ]
    paths = [(prompt, prompt) for prompt in prompts]
    return HashedCache(
        blocks, PAGE, groups, paths.__getitem__, 1000, retention=retention,
        chunk_tokens=8,
    )  # fmt: skip


def run(cache: HashedCache, request: int, tokens: int) -> Hit:
    """Compute a prompt in chunks of two pages."""
    hit = cache.begin(request, tokens)
    for position in range(hit.resumed * PAGE, tokens, 2 * PAGE):
        cache.compute(request, min(position + 2 * PAGE, tokens))
    return hit


def at(position: int) -> Served:
    """Request 0 with so many tokens."""
    served = Served(0, 0.0, 1, 1, list, (), 0)
    served.position = position
    return served


def in_use(cache: HashedCache) -> int:
    return cache.total - cache.available


def test_a_decoding_request_keeps_the_last_windows_alone() -> None:
    cache = open_cache([[1, 2, 3, 4, 5]], 100)
    run(cache, 0, 20)
    assert in_use(cache) == 5 + 3 + 6  # those of a chunk and a window
    assert cache.reserve(cache.held(0), 20) >= 0
    assert in_use(cache) == (5 + 1) + (1 + 1) + (2 + 1)  # a window each, and the next token's
    assert cache.reserve(cache.held(0), 21) >= 0
    assert in_use(cache) == (5 + 1) + 2 + 3
    cache.end(0)
    assert in_use(cache) == 0


def test_blocks_of_drafts_that_were_rejected_are_freed() -> None:
    cache = open_cache([[1, 2, 3, 4, 5]], 100)
    cache._step = 9
    run(cache, 0, 20)
    assert cache.reserve(cache.held(0), 20) >= 0
    most = in_use(cache)
    cache.decoded([at(21)])
    assert in_use(cache) == most - (2 + 4 + 8)


def test_where_a_hit_ran_out_of_windows_they_are_kept_the_next_time() -> None:
    prompts = [[1, 2, 3, 4, n, n + 1] for n in (10, 20, 30)]
    hits: dict[int | None, list[Hit]] = {}
    for retention in (None, 0):
        cache, hits[retention] = open_cache(prompts, 200, retention), []
        for request in range(3):
            hits[retention].append(run(cache, request, 24))
            cache.end(request)
    assert hits[None][1:] == [Hit(4, 4, 4)] * 2
    assert hits[0][1:] == [Hit(0, 4, 0), Hit(4, 4, 4)]


def test_a_request_that_does_not_fit_its_next_step_takes_nothing() -> None:
    cache = open_cache([[1, 2]], 2 + 4 + 8)
    run(cache, 0, 8)
    cache.pool.get_new_blocks(cache.available)  # others'
    before = in_use(cache)
    cache._step = 20
    assert cache.reserve(cache.held(0), 8) < 0
    assert in_use(cache) == before - 3 - 6  # windows behind come free all the same


def test_blocks_that_hold_nothing_go_first_and_then_those_freed_first() -> None:
    pool = BlockPool(10)
    pool.get_new_blocks(8)
    entries = [pool.cache(key, 2) for key in range(4)]
    for key in (2, 0, 3, 1):
        pool.free(entries[key])
    pool.get_new_blocks(2)
    assert (pool.idle, pool.evicted) == (8, 0)
    pool.get_new_blocks(3)
    assert sorted(pool.cached) == [1, 3]  # of the second a block is left, which is of no use
    assert (pool.idle, pool.evicted) == (5, 3)
    pool.touch(pool.cached[3])
    pool.get_new_blocks(3)
    assert sorted(pool.cached) == [3]
    with pytest.raises(OutOfBlocks):
        pool.get_new_blocks(1)
    assert (pool.uncached, pool.idle, pool.busy) == (0, 0, 2)


def test_of_two_copies_the_older_is_found_until_it_is_evicted() -> None:
    pool = BlockPool(2)
    pool.get_new_blocks(2)
    older, newer = pool.cache(7, 1), pool.cache(7, 1)
    assert pool.cached[7] is older
    pool.free(older)
    pool.free(newer)
    pool.get_new_blocks(1)
    assert pool.cached[7] is newer
    pool.get_new_blocks(1)
    assert not pool.cached


def test_a_decoding_request_holds_the_blocks_of_what_it_sees_alone() -> None:
    cache, due = open_cache([[1, 2, 3, 4, 5]], 100), 0
    run(cache, 0, 18)
    for position in range(18, 90):
        if position >= due:
            due = cache.reserve(cache.held(0), position)
        sizes = [(PAGE, position), *((g.block_tokens, g.seen) for g in cache.groups)]
        held = (-(-(position + 1) // n) - max(0, position - seen) // n for n, seen in sizes)
        assert in_use(cache) == sum(held)
    cache.end(0)
    assert in_use(cache) == 0
