"""SGLang's cache asked directly: what fits beside others, what decoding keeps."""

import pytest

from dsv4kv.core.radix import Pages, SglangCache, SglangWindowCache
from dsv4kv.core.served import Hit, Served

PAGE = 4
Prompt = list[int]


def text(*parts: tuple[int, int]) -> Prompt:
    """Numbers of pages: (a letter, how many pages of it)."""
    return [letter * 1000 + page for letter, pages in parts for page in range(pages)]


def window_cache(
    prompts: list[Prompt], pages: int, windows: int, *, holds_chunks: bool = False
) -> SglangWindowCache:
    own = Pages(pages, PAGE, prompts.__getitem__, window_pages=windows, window_tokens=PAGE,
                chunk_tokens=2 * PAGE, dense=True, holds_chunks=holds_chunks)  # fmt: skip
    return SglangWindowCache(own)


def run(cache: SglangCache, request: int, tokens: int) -> Hit:
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
    assert cache.fits(2, 28, 0, 8)
    assert not cache.fits(3, 32, 0, 8)


@pytest.mark.parametrize(("holds_chunks", "held"), [(True, 2), (False, 1)])
def test_a_decoding_request_holds_windows_of_its_last_chunk_or_page_and_of_what_it_generates(
    holds_chunks: bool, held: int
) -> None:
    cache = window_cache([text((1, 6))], 100, 60, holds_chunks=holds_chunks)
    run(cache, 0, 24)
    cache.decode(0)
    assert cache.available == 60 - held
    cache.get_new_blocks(3)
    one = Served(0, 0.0, 24, 999, lambda _: [], (), 0)
    one.begun, one.position, one.blocks = 24, 36, 9
    cache.decoded([one])
    assert cache.available == 60 - held - 3
    far = 24 + 64 + 10 * PAGE  # it gives back once in 128 steps, so 64 ago on average
    cache.get_new_blocks(23)
    one.position, one.blocks = far, 32
    cache.decoded([one])
    assert cache.available == 60 - held - 26 + 9
    cache.end(0, 26, far)
    assert cache.available == 60


def test_windows_in_use_that_are_the_oldest_are_the_oldest_again_when_they_are_not() -> None:
    evicted: list[int] = []
    prompts = [text((letter, 3)) for letter in range(5)]
    cache = window_cache(prompts, 100, 8, holds_chunks=True)
    cache.on_evicted = lambda _, windows: evicted.extend(windows)
    cache.begin(0, 12)
    cache.compute(0, 8)
    for request in range(1, 5):  # two pages each: the last one evicts
        run(cache, request, 8)
        cache.end(request, 0)
    assert evicted == prompts[1][:2]
    cache.end(0, 0)  # before its end: nothing is used again
    run(cache, 1, 8)
    assert evicted == prompts[1][:2] + prompts[0][:2]
