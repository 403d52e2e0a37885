"""Host pools are those that the engines' own code makes on random settings."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dsv4kv.engines.contract import Capacity, HostWish
from dsv4kv.engines.names import FAMILIES, find_engine
from dsv4kv.engines.vllm import host
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import PageLayout
from tests.engines.oracles.planned import ENGINES, SETTINGS, deployment_of, read_settings


def hicache_of(asked: dict[str, Any]) -> dict[str, Any]:
    engine = find_engine(ENGINES["hicache"])
    ratio = asked["host_ratio"]
    wish = HostWish(
        "hicache",
        ratio=None if ratio is None else Fraction(ratio),
        size_bytes=asked["size"] * 10**9 or None,
        memory_bytes=asked["memory"],
        layout=asked["layout"],
        ranks=asked["ranks"],
    )
    full = Capacity(0, asked["full"], Fraction(0), Fraction(0), None, Fraction(0), ())
    try:
        tier = engine.host_tier(deployment_of(asked), full, wish)
    except ConfigError as error:
        return {"refused": str(error)}
    if tier.refusal:
        return {"refused": tier.refusal}
    pools = [[pool.name, pool.pages, pool.page_bytes, pool.total_bytes] for pool in tier.pools]
    return {"pools": pools, "gpu": tier.gpu_bytes}


def told_of(asked: dict[str, Any]) -> dict[str, Any]:
    """As the engine made them; its pool of keys for V3.2 has a page more than its tokens."""
    pools = []
    for name, count, page_bytes, total, _ in asked["answer"]["pools"]:
        pages = count + (name == "indexer")
        pools.append([name, pages, total // pages if name == "indexer" else page_bytes, total])
    staged = sum(row[4] for row in asked["answer"]["pools"])
    return {"pools": pools, "gpu": 0 if asked["kind"] == "flat" else staged}


def test_500_random_host_pools_are_those_that_sglang_makes() -> None:
    """To the byte, and refused where it refuses."""
    settings = read_settings("hicache")
    assert len(settings) == SETTINGS >= 500
    unlike, refused = [], 0
    for asked in settings:
        found = hicache_of(asked)
        if "refused" in asked["answer"]:
            refused += 1
            alike = "refused" in found
        else:
            alike = found == told_of(asked)
        if not alike:
            unlike.append((asked["kind"], asked["answer"], found))
    assert unlike == []
    assert refused > 50


def test_what_a_decode_side_is_sent_are_the_buffers_that_sglang_registers() -> None:
    """Of a prompt that ends inside every group of tokens; draft windows are another component."""
    engine = find_engine(ENGINES["hicache"])
    asked_for = [asked for asked in read_settings("hicache") if "sent" in asked["answer"]]
    assert len(asked_for) > 350
    for asked in asked_for:
        deployment = deployment_of(asked)
        page, window = (group.block_bytes for group in engine.rule(deployment).layout.groups)
        sent = engine.sent(deployment, 1)
        assert sent is not None
        pending = sent.bytes - page - window
        drafts = asked["drafts"] * PageLayout(deployment.formats.window, 256).page_bytes
        told_page, told_window, told_pending = asked["answer"]["sent"]
        assert (page, pending) == (told_page, told_pending)
        assert asked["encoder"] or window - drafts == told_window


@pytest.mark.parametrize("sentence", ["--hicache-size", "auto-sizing", "Not enough host memory"])
def test_what_sglang_refuses_is_among_the_settings(sentence: str) -> None:
    answers = [asked["answer"].get("refused", "") for asked in read_settings("hicache")]
    assert any(sentence in answer for answer in answers)


def offloading_of(asked: dict[str, Any]) -> dict[str, Any]:
    engine, deployment = find_engine(ENGINES["offloading"]), deployment_of(asked)
    assert isinstance(engine, VllmEngine)
    capacity = engine.capacity(deployment, asked["memory"])
    wish = HostWish(
        "native",
        size_bytes=asked["given"],
        tp=asked["tp"],
        replica_ranks=asked["tp"] * asked["pp"],
        retention=asked["retention"],
    )
    (chunk,) = engine.host_tier(deployment, capacity, wish).pools
    (block,) = engine.host_tier(deployment, capacity, replace(wish, tier="simple")).pools
    groups = host.offloaded_groups(engine, deployment)
    align = groups[0].block_tokens
    return {
        "chunk_bytes": chunk.page_bytes,
        "chunks": chunk.pages,
        "tokens": host.counted_tokens(groups, chunk.pages, asked["context"]),
        "shared": host.shares_copy(deployment, wish),
        "simple_blocks": block.pages,
        "stored": sorted(
            host.stored_chunks(group, align, asked["prompt"], asked["retention"])
            for group in groups
        ),
    }


def test_500_random_offloads_are_those_that_vllm_makes() -> None:
    """Chunks, vLLM's own count of tokens, and what is stored of a prompt, to the integer."""
    settings = read_settings("offloading")
    assert len(settings) == SETTINGS >= 500
    for asked in settings:
        found = offloading_of(asked)
        assert found == {name: asked["answer"][name] for name in found}
    assert {asked["answer"]["shared"] for asked in settings} == {True, False}


def test_vllm_plans_v4_and_v41_with_its_hybrid_manager_alone() -> None:
    """A connector without it, such as LMCacheConnectorV1, does not start."""
    for asked in read_settings("offloading"):
        assert asked["answer"]["without_hybrid"] == (asked["kind"] == "flat")


def test_what_vllm_is_said_to_refuse_it_refuses_in_these_words() -> None:
    """And nothing else: what is only not sized here, it starts."""
    seen = set()
    for asked in read_settings("offloading"):
        kind, told = asked["kind"], asked["answer"]["refused"]
        limits = [limit for limit in FAMILIES["vllm"].limits if kind in limit.kinds]
        said = {limit.asked: limit.said for limit in limits if limit.said}
        told = {name: text for name, text in told.items() if (kind, name) != ("v41", "prefill_cp")}
        assert said.keys() == told.keys()
        assert all(told[name].startswith(text) for name, text in said.items())
        seen.add(kind)
    assert seen == {"v4", "v41", "flat"}


def lmcache_of(asked: dict[str, Any]) -> dict[str, Any]:
    engine = find_engine(ENGINES["lmcache"])
    assert isinstance(engine, VllmEngine)
    groups = [group for group in engine.layout(deployment_of(asked)).groups if not group.ring]
    try:
        return {"chunk_bytes": host.chunk_bytes(groups, asked["chunk"])}
    except ConfigError as error:
        return {"refused": str(error)}


def test_500_random_chunks_are_cut_as_lmcache_cuts_them() -> None:
    """To the byte, and refused where a chunk is not one of whole blocks."""
    settings = read_settings("lmcache")
    assert len(settings) == SETTINGS >= 500
    assert sum("refused" in asked["answer"] for asked in settings) < 250
    for asked in settings:
        found = lmcache_of(asked)
        if "refused" in asked["answer"]:
            assert "refused" in found
        else:
            assert found == asked["answer"]
