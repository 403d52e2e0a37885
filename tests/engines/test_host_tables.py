"""Host pools to the byte: pages of HiCache, chunks of vLLM, bytes of a token in LMCache.

V4-Flash and V4-Pro with FP8 keys, no drafts, one rank. Sources: SGLang 0.5.23
(``hybrid_pool_assembler.py``, ``memory_pool_host.py``), vLLM 0.33.0 (``v1/kv_offload``, its
``reachable_block_mask`` as it ran), LMCache 0.5.6 (``v1/kv_layer_groups.py``).
"""

from fractions import Fraction

import pytest

from dsv4kv.engines.contract import Capacity, Deployment
from dsv4kv.engines.host import HostTier, HostWish
from dsv4kv.engines.names import find_engine
from dsv4kv.engines.vllm.host import chunk_bytes, offloaded_groups, stored_chunks
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats

MODELS = ("v4-flash", "v4-pro")
PROMPTS = (2_048, 8_192, 131_072, 1_048_576)


def deployment(name: str) -> Deployment:
    model = load_model(name)
    formats = choose_formats(model, indexer="fp8")
    return Deployment(model, formats, model.max_context_tokens, in_flight_tokens=8192)


def vllm() -> VllmEngine:
    engine = find_engine("vllm:0.33")
    assert isinstance(engine, VllmEngine)
    return engine


def capacity(units: int, unit_bytes: int = 0) -> Capacity:
    return Capacity(0, units, Fraction(unit_bytes), Fraction(1), None, Fraction(1), ())


def hicache(name: str, ratio: str) -> HostTier:
    wish = HostWish("hicache", ratio=Fraction(ratio))
    full = capacity(1_000 * 256)
    return find_engine("sglang:0.5.23").host_tier(deployment(name), full, wish)


HICACHE_PAGES = {
    "kv": (0, 0),
    "deepseek_v4_c4": (786_240, 1_123_200),
    "deepseek_v4_c4_indexer": (177_408, 253_440),
    "deepseek_v4_c128": (34_560, 53_568),
    "swa": (6_439_680, 9_135_360),
    "deepseek_v4_c4_state": (1_376_256, 1_966_080),
    "deepseek_v4_c4_indexer_state": (344_064, 491_520),
}
WINDOWED = ("swa", "deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state")


@pytest.mark.parametrize("name", MODELS)
def test_hicache_has_these_pools_and_none_of_hca_states(name: str) -> None:
    pools = hicache(name, "2").pools
    at = MODELS.index(name)
    assert {pool.name: pool.page_bytes for pool in pools} == {
        pool: sizes[at] for pool, sizes in HICACHE_PAGES.items()
    }
    tails = sum(pool.page_bytes for pool in pools if pool.name in WINDOWED)
    context = sum(pool.page_bytes for pool in pools) - tails
    assert (context, tails) == ((998_208, 8_160_000), (1_430_208, 11_592_960))[at]


CHUNKS = {
    None: (184, 736, 11_776, 94_208),
    0: (30, 54, 534, 4_118),
    4_096: (30, 98, 1_238, 9_750),
    32_768: (30, 54, 622, 4_822),
}
"""Chunks stored of prompts by retention; the mask of vLLM's own code answered so."""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("retention", CHUNKS)
def test_a_prompt_leaves_so_many_chunks_in_vllms_host_memory(
    name: str, retention: int | None
) -> None:
    groups = offloaded_groups(vllm(), deployment(name), retention)
    found = [sum(stored_chunks(group, 256, n, retention) for group in groups) for n in PROMPTS]
    assert tuple(found) == CHUNKS[retention]


@pytest.mark.parametrize(
    ("name", "block_bytes", "chunk"),
    [("v4-flash", 1_002_240, 1_003_520), ("v4-pro", 1_435_968, 1_437_696)],
)
def test_a_chunk_is_a_block_of_the_pool_in_whole_pages_of_4096(
    name: str, block_bytes: int, chunk: int
) -> None:
    given = deployment(name)
    assert vllm().layout(given).unit_bytes == block_bytes
    wish = HostWish("native", size_bytes=100 * 2**30)
    (pool,) = vllm().host_tier(given, capacity(1, block_bytes), wish).pools
    assert (pool.page_bytes, pool.pages) == (chunk, 100 * 2**30 // chunk)


@pytest.mark.parametrize(
    ("name", "token", "tail"),
    [
        ("v4-flash", Fraction("3850.25"), 15_420_416),
        ("v4-pro", Fraction("5511.4375"), 23_270_400),
    ],
)
@pytest.mark.parametrize("chunk", [256, 1_024, 4_096, 32_768])
def test_lmcache_keeps_context_by_the_token_and_a_tail_by_the_chunk(
    name: str, token: Fraction, tail: int, chunk: int
) -> None:
    groups = vllm().layout(deployment(name)).groups
    assert chunk_bytes(groups, chunk) == token * chunk + tail
    wish = HostWish("lmcache", size_bytes=10 * 2**30, chunk_tokens=chunk)
    (pool,) = vllm().host_tier(deployment(name), capacity(1), wish).pools
    assert pool.page_bytes == -(-(token * chunk + tail) // 4_096) * 4_096
