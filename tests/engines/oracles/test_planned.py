"""Sizes are those of the engines' own planners on random settings of V4, V4.1 and V3.2."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dsv4kv.engines.contract import Capacity, Deployment, HostWish
from dsv4kv.engines.names import FAMILIES, find_engine
from dsv4kv.engines.sglang.sizes import SglangEngine
from dsv4kv.engines.vllm import host
from dsv4kv.engines.vllm.sizes import VllmEngine, hca_index_bytes, workspace_bytes
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.plan import choose_formats
from tests.engines.oracles import planned
from tests.engines.oracles.asking import needs_engines
from tests.engines.oracles.planned import SGLANG, VLLM, deployment_of, model_of, read_settings

Setting = dict[str, Any]


def vllm() -> VllmEngine:
    engine = find_engine(VLLM)
    assert isinstance(engine, VllmEngine)
    return engine


def sglang(name: str = SGLANG) -> SglangEngine:
    engine = find_engine(name)
    assert isinstance(engine, SglangEngine)
    return engine


def by_vllm(asked: Setting) -> Setting:
    deployment = deployment_of(asked)
    layout, context = vllm().layout(deployment), asked["context"]
    capacity = vllm().capacity(deployment, asked["memory"])
    return {
        "block_bytes": layout.unit_bytes,
        "request_blocks": layout.blocks(context, asked["flight"]),
        "needed_bytes": vllm().needed_bytes(deployment, context),
        "blocks": capacity.units,
        "printed_tokens": int(float(capacity.concurrency) * context),
        "group_tokens": sorted(group.block_tokens for group in layout.groups),
    }


def by_sglang(asked: Setting) -> Setting:
    """Where the start refuses there are no pools to compare."""
    deployment, window = deployment_of(asked), 0
    capacity = sglang().capacity(deployment, asked["memory"])
    if asked["kind"] != "flat":
        window = sglang().pools(deployment).window_slots(capacity.units)
    found = {"token_bytes": float(capacity.unit_bytes), "full": capacity.units, "window": window}
    return {name: found[name] for name, told in asked["answer"].items() if told is not None}


def by_start(asked: Setting) -> Setting:
    """What is printed of the pools, word for word, and why a start is refused."""
    engine = sglang(f"sglang:{asked['version']}")
    capacity = engine.capacity(deployment_of(asked), asked["memory"])
    return {"lines": list(capacity.log_lines), "full": capacity.printed_tokens}


def by_workspace(asked: Setting) -> Setting:
    model = model_of(asked["model"])
    formats = choose_formats(model, indexer="mxfp4" if asked["mxfp4"] else "fp8")
    deployment = Deployment(
        model, formats, max_context_tokens=asked["context"], in_flight_tokens=asked["step"]
    )
    hca = hca_index_bytes(deployment, asked["step"]) if asked["kind"] == "v4" else 0
    return {"workspace": workspace_bytes(deployment, asked["step"]), "hca": hca}


def by_hicache(asked: Setting) -> Setting:
    wish = HostWish(
        "hicache",
        ratio=None if asked["host_ratio"] is None else Fraction(asked["host_ratio"]),
        size_bytes=asked["size"] * 10**9 or None,
        memory_bytes=asked["memory"],
        layout=asked["layout"],
        ranks=asked["ranks"],
    )
    full = Capacity(0, asked["full"], Fraction(0), Fraction(0), None, Fraction(0), ())
    tier = sglang().host_tier(deployment_of(asked), full, wish)
    if tier.refusal:
        raise ConfigError(tier.refusal)
    pools = [[pool.name, pool.pages, pool.page_bytes, pool.total_bytes] for pool in tier.pools]
    return {"pools": pools, "gpu": tier.gpu_bytes}


def by_offloading(asked: Setting) -> Setting:
    """Chunks, vLLM's own count of tokens, and what is stored of a prompt."""
    deployment = deployment_of(asked)
    capacity = vllm().capacity(deployment, asked["memory"])
    wish = HostWish(
        "native",
        size_bytes=asked["given"],
        tp=asked["tp"],
        replica_ranks=asked["tp"] * asked["pp"],
        retention=asked["retention"],
    )
    (chunk,) = vllm().host_tier(deployment, capacity, wish).pools
    (block,) = vllm().host_tier(deployment, capacity, replace(wish, tier="simple")).pools
    groups = host.offloaded_groups(vllm(), deployment)
    stored = (
        host.stored_chunks(each, groups[0].block_tokens, asked["prompt"], asked["retention"])
        for each in groups
    )
    return {
        "chunk_bytes": chunk.page_bytes,
        "chunks": chunk.pages,
        "tokens": host.counted_tokens(groups, chunk.pages, asked["context"]),
        "shared": host.shares_copy(deployment, wish),
        "simple_blocks": block.pages,
        "stored": sorted(stored),
    }


def by_lmcache(asked: Setting) -> Setting:
    groups = [group for group in vllm().layout(deployment_of(asked)).groups if not group.ring]
    return {"chunk_bytes": host.chunk_bytes(groups, asked["chunk"])}


def pools_of(asked: Setting) -> Setting:
    """HiCache's as they were made; its pool of keys for V3.2 has a page more than its tokens."""
    if "refused" in asked["answer"]:
        return {"refused": True}
    pools = []
    for name, count, page_bytes, total, _ in asked["answer"]["pools"]:
        pages = count + (name == "indexer")
        pools.append([name, pages, total // pages if name == "indexer" else page_bytes, total])
    staged = sum(row[4] for row in asked["answer"]["pools"])
    return {"pools": pools, "gpu": 0 if asked["kind"] == "flat" else staged}


def lines_of(asked: Setting) -> Setting:
    told, printed = asked["answer"], ("DSV4 pool PP slice", "DSV4 memory calculation")
    lines = [line for line in told["lines"] if line.startswith(printed)]
    return {"lines": lines + [told["refusal"]] * bool(told["refusal"]), "full": told["full"]}


SIZED: dict[str, Callable[[Setting], Setting]] = {
    "vllm": by_vllm,
    "sglang": by_sglang,
    "roles": by_sglang,
    "starts": by_start,
    "workspaces": by_workspace,
    "hicache": by_hicache,
    "offloading": by_offloading,
    "lmcache": by_lmcache,
}
TOLD = {"hicache": pools_of, "starts": lines_of}


@pytest.mark.parametrize("planner", SIZED)
def test_random_settings_are_sized_as_the_engines_planner_sizes_them(planner: str) -> None:
    """To the byte, and refused where it refuses."""
    unlike = []
    for asked in read_settings(planner):
        told = TOLD[planner](asked) if planner in TOLD else asked["answer"]
        try:
            found = SIZED[planner](asked)
            alike = found == {name: told.get(name) for name in found}
        except ConfigError:
            found, alike = {}, "refused" in told
        if not alike:
            unlike.append((asked, found))
    assert unlike == []


def test_v41_has_the_groups_that_vllm_prints() -> None:
    """vllm#56871: blocks of 64 tokens, seven groups of windows of 32, a ring of 8."""
    groups = {
        tuple(asked["answer"]["group_tokens"])
        for asked in read_settings("vllm")
        if (asked["model"], asked["arch"], asked["block"]) == ("v4.1-flash", "sm_90", 64)
        and not asked["drafts"]
    }
    assert groups == {(8, *(32,) * 7, 64)}


def test_what_a_decode_side_is_sent_are_the_buffers_that_sglang_registers() -> None:
    """Of a prompt that ends inside every group of tokens; draft windows are another component."""
    asked_for = [asked for asked in read_settings("hicache") if "sent" in asked["answer"]]
    assert len(asked_for) > 350
    for asked in asked_for:
        deployment = deployment_of(asked)
        page, window = (group.block_bytes for group in sglang().rule(deployment).layout.groups)
        sent = sglang().sent(deployment, 1)
        assert sent is not None
        pending = sent.bytes - page - window
        drafts = asked["drafts"] * PageLayout(deployment.formats.window, 256).page_bytes
        told_page, told_window, told_pending = asked["answer"]["sent"]
        assert (page, pending) == (told_page, told_pending)
        assert asked["encoder"] or window - drafts == told_window


def test_what_vllm_is_said_to_refuse_it_refuses_in_these_words() -> None:
    """And nothing else: what is only not sized here, it starts.

    V4 and V4.1 are planned with its hybrid manager alone: a connector without it, such as
    LMCacheConnectorV1, does not start.
    """
    for asked in read_settings("offloading"):
        kind, told = asked["kind"], asked["answer"]["refused"]
        limits = [limit for limit in FAMILIES["vllm"].limits if kind in limit.kinds]
        said = {limit.asked: limit.said for limit in limits if limit.said}
        told = {name: text for name, text in told.items() if (kind, name) != ("v41", "prefill_cp")}
        assert said.keys() == told.keys()
        assert all(told[name].startswith(text) for name, text in said.items())
        assert asked["answer"]["without_hybrid"] == (kind == "flat")


@needs_engines
@pytest.mark.parametrize("planner", planned.PLANNERS)
def test_the_planner_answers_as_recorded(planner: str) -> None:
    assert planned.answered(planner) == list(read_settings(planner))
