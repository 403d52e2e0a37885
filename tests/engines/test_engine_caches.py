"""The engines' caches asked directly: what fits beside others, what decoding keeps."""

from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4kv.engines.cache import Hit, Pool
from dsv4kv.engines.sglang.cache import PageTree, SglangCache, number_pages
from dsv4kv.engines.sglang.windows import SglangWindowCache, WindowTree
from dsv4kv.engines.vllm.cache import VllmCache
from dsv4kv.engines.vllm.groups import GroupPool
from dsv4kv.engines.vllm.queue import BlockQueue
from dsv4kv.engines.vllm.tables import TailGroup, number_ways
from dsv4kv.errors import OutOfBlocks
from dsv4kv.model.presets import load_model
from tests.prefix.traces import Text, to_table

PAGE = 4
SMALL = load_model("v4-flash").model_copy(update={"window_tokens": PAGE})
GROUPS = (TailGroup(2, 1), TailGroup(1, 2))


def text(*parts: tuple[int, int]) -> Text:
    """Tokens of pages: (a letter, how many pages of it)."""
    return tuple(letter * 1000 + i for letter, pages in parts for i in range(pages * PAGE))


def window_cache(
    prompts: list[Text], pages: int, windows: int, *, holds_chunks: bool = False
) -> SglangWindowCache:
    table = to_table(prompts)
    shape = number_pages(table, PAGE)
    pool = Pool(table, pages * PAGE, PAGE, SMALL, chunk_tokens=2 * PAGE, holds_chunks=holds_chunks)
    return SglangWindowCache(WindowTree(shape, pages, windows), shape, pool, dense=True)


def vllm_cache(prompts: list[Text], blocks: int, retention: int | None = None) -> VllmCache:
    ways, nodes = number_ways(to_table(prompts), PAGE, GROUPS, 0)
    pool = GroupPool(blocks, nodes, PAGE, GROUPS)
    return VllmCache(pool, ways, retention_tokens=retention, chunk_tokens=8)


def run(cache: SglangCache | VllmCache, request: int, tokens: int) -> Hit:
    """Compute a prompt in chunks of two pages; it stays in the cache's hands."""
    hit = cache.begin(request, tokens)
    for position in range(hit.resumed * PAGE, tokens, 2 * PAGE):
        cache.compute(request, min(position + 2 * PAGE, tokens))
    return hit


def test_windows_that_a_hit_needs_are_not_those_it_may_evict() -> None:
    prompts = [text((1, 6)), text((2, 3)), text((1, 5), (3, 2)), text((1, 5), (4, 3))]
    cache = window_cache(prompts, 100, 6)
    run(cache, 0, 24)
    cache.end(0, 0)
    cache.begin(1, 12)  # may take three of the six pages
    # that at the end of the hit must stay: two more can go
    assert cache.fits(2, 28, 0)
    assert not cache.fits(3, 32, 0)


def generating(*, position: int, blocks: int) -> Any:
    columns = {"begun": 24, "position": position, "blocks": blocks}
    return SimpleNamespace(**{name: np.array([value]) for name, value in columns.items()})


@pytest.mark.parametrize(("holds_chunks", "held"), [(True, 2), (False, 1)])
def test_a_decoding_request_holds_windows_of_its_last_chunk_or_page_and_of_what_it_generates(
    holds_chunks: bool, held: int
) -> None:
    cache = window_cache([text((1, 6))], 100, 60, holds_chunks=holds_chunks)
    run(cache, 0, 24)
    cache.decode(0)
    assert cache.available == 60 - held
    cache.take(3)
    cache.decoded(generating(position=36, blocks=9))
    assert cache.available == 60 - held - 3
    far = 24 + 64 + 10 * PAGE  # it gives back once in 128 steps, so 64 ago on average
    cache.take(23)
    cache.decoded(generating(position=far, blocks=32))
    assert cache.available == 60 - held - 26 + 9
    cache.end(0, 26, far)
    assert cache.available == 60


def test_a_prompt_found_is_not_what_it_may_evict() -> None:
    prompts = [text((1, 6)), text((1, 6), (2, 5))]
    shape = number_pages(to_table(prompts), PAGE)
    cache = SglangCache(PageTree(shape, 12), shape, PAGE)
    run(cache, 0, 24)
    cache.end(0, 0)
    assert cache.fits(1, 44, 1)
    assert not cache.fits(1, 44, 2)


def test_a_peek_changes_nothing_and_tells_what_is_found() -> None:
    prompts = [text((1, 6)), text((1, 4), (2, 3))]
    cache = window_cache(prompts, 100, 20)
    run(cache, 0, 24)
    cache.end(0, 0)
    tree = cache._tree
    before = (tree._clock, tree.locked, tree.stored)
    assert (cache.peek(1, 28), cache.fits(1, 28, 0)) == (4, True)
    assert (tree._clock, tree.locked, tree.stored) == before
    assert cache.begin(1, 28) == Hit(4, 4, 4)


def test_a_decoding_request_keeps_the_last_windows_alone() -> None:
    cache = vllm_cache([text((1, 5))], 100)
    run(cache, 0, 20)
    assert cache.total - cache.free - cache.cached == 5 + 3 + 6  # of a chunk and a window
    cache.decode(0)
    assert cache.total - cache.free - cache.cached == 5 + 1 + 2
    assert cache.available == cache.free + cache.cached


def test_where_a_hit_ran_out_of_windows_they_are_kept_the_next_time() -> None:
    prompts = [text((1, 4), (2, 2)), text((1, 4), (3, 2)), text((1, 4), (4, 2))]
    hits: dict[int | None, list[Hit]] = {}
    for retention in (None, 0):
        cache, hits[retention] = vllm_cache(prompts, 200, retention), []
        for request in range(3):
            hits[retention].append(run(cache, request, 24))
            cache.end(request, 0)
    assert hits[None][1:] == [Hit(4, 4, 4)] * 2
    assert hits[0][1:] == [Hit(0, 4, 0), Hit(4, 4, 4)]


def test_windows_others_use_too_are_promised_to_each() -> None:
    # two requests resume behind the same windows; when one moves on, these do not come free
    prompts = [text((1, 4)), text((1, 4), (2, 6)), text((1, 4), (3, 6))]
    cache = vllm_cache(prompts, 1000)
    run(cache, 0, 16)
    cache.end(0, 0)
    before = cache.available
    for request in (1, 2):
        assert cache.begin(request, 40).resumed == 4
    shared = cache.available
    most = cache._pool.most_blocks(40, 8)
    assert before - shared == 2 * (most - 4) + 4
    for request in (1, 2):
        cache.compute(request, 24)
    assert cache.available == shared


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_blocks_for_decoded_tokens_that_are_not_there_are_refused(kind: str) -> None:
    prompts = [text((1, 2))]
    cache = vllm_cache(prompts, 30) if kind == "vllm" else window_cache(prompts, 30, 30)
    cache.begin(0, 8)
    with pytest.raises(OutOfBlocks):
        cache.take(31)
    cache.take(3)
    cache.end(0, 3)
    assert cache.free == 30


@pytest.mark.parametrize("retention", [None, 0, 2 * PAGE])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_chunks_told_together_leave_what_chunks_told_one_by_one_leave(
    kind: str, retention: int | None
) -> None:
    draw = Random(retention or 1)
    prompts = [
        text((draw.randint(1, 3), draw.randint(1, 9)), (10 + number, draw.randint(0, 9)))
        for number in range(60)
    ]

    def opened() -> SglangWindowCache | VllmCache:
        if kind == "sglang":
            return window_cache(prompts, 60, 40)
        return vllm_cache(prompts, 90, retention)

    together, apart = both = opened(), opened()
    running = list[int]()
    for request, prompt in enumerate(prompts):
        tokens = len(prompt) - draw.randint(0, PAGE - 1)
        while not apart.fits(request, tokens, 0):
            ended = running.pop(0)
            assert together.end(ended, 0) == apart.end(ended, 0)
        begin, chunk = apart.begin(request, tokens).resumed * PAGE, draw.randint(1, 2 * PAGE)
        assert together.begin(request, tokens).resumed * PAGE == begin
        ends = [*range(begin + chunk, tokens, chunk), tokens]
        cut = draw.randint(1, len(ends))
        for *earlier, end in filter(None, (ends[:cut], ends[cut:])):
            told = together.compute(request, end, earlier)
        assert told == [apart.compute(request, end) for end in ends][-1]
        running.append(request)
        for cache in both:
            cache.decode(request)
        states = [(c.free, c.cached, c.shared, c.evicted, c.available) for c in both]
        assert states[0] == states[1]
    assert apart.evicted > 50


def test_a_queue_is_as_large_as_its_pool_however_many_blocks_went_through_it() -> None:
    queue, blocks = BlockQueue(100, 10_000), 20
    for begin in range(0, 40_000, blocks):
        queue.take(blocks)
        queue.give_back(queue.cache(np.arange(begin, begin + blocks) % 10_000, 1))
        queue.take(3)  # an entry of several blocks, of which a part may be taken
        queue.give_back(queue.cache(np.array([begin % 7]), 3))
    assert queue.uncached == queue.busy == 0
    assert queue.idle == 100
    assert queue.evicted == 2_000 * (blocks + 3) - 100
    assert len(queue._key) == len(queue._queue) == 1024
