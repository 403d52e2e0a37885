"""Sizes are those of the engines' own planners on 500 random settings of V4, V4.1 and V3.2."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dsv4kv.engines.names import find_engine
from dsv4kv.engines.sglang.sizes import SglangEngine
from dsv4kv.engines.vllm.sizes import VllmEngine
from tests.engines.oracles import planned
from tests.engines.oracles.asking import needs_engines


def by_vllm(asked: dict[str, Any]) -> dict[str, Any]:
    engine = find_engine(planned.ENGINES["vllm"])
    assert isinstance(engine, VllmEngine)
    deployment = planned.deployment_of(asked)
    layout, context = engine.layout(deployment), asked["context"]
    capacity = engine.capacity(deployment, asked["memory"])
    return {
        "block_bytes": layout.unit_bytes,
        "request_blocks": layout.blocks(context, asked["flight"]),
        "needed_bytes": engine.needed_bytes(deployment, context),
        "blocks": capacity.units,
        "printed_tokens": int(float(capacity.concurrency) * context),
        "group_tokens": sorted(group.block_tokens for group in layout.groups),
    }


def by_sglang(asked: dict[str, Any]) -> dict[str, Any]:
    engine = find_engine(planned.ENGINES["sglang"])
    assert isinstance(engine, SglangEngine)
    deployment = planned.deployment_of(asked)
    capacity = engine.capacity(deployment, asked["memory"])
    found = {"token_bytes": float(capacity.unit_bytes), "full": capacity.units, "window": 0}
    if asked["kind"] != "flat":
        pools = engine.pools(deployment)
        found["window"] = pools.window_slots(capacity.units)
    return found


@pytest.mark.parametrize(
    ("engine", "size"), [("vllm", by_vllm), ("sglang", by_sglang), ("roles", by_sglang)]
)
def test_500_random_settings_are_sized_as_the_engines_planner_sizes_them(
    engine: str, size: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """To the byte. Where SGLang's start refuses there are no pools to compare."""
    settings = planned.read_settings(engine)
    assert len(settings) == planned.SETTINGS >= 500
    assert Counter(asked["kind"] for asked in settings)["v41"] > 150
    unlike = []
    for asked in settings:
        answer, found = asked["answer"], size(asked)
        if any(found[name] != told for name, told in answer.items() if told is not None):
            unlike.append((asked, found))
    assert unlike == []


def test_v41_has_the_groups_that_vllm_prints() -> None:
    """vllm#56871: blocks of 64 tokens, seven groups of windows of 32, a ring of 8."""
    groups = {
        tuple(asked["answer"]["group_tokens"])
        for asked in planned.read_settings("vllm")
        if (asked["model"], asked["arch"], asked["block"]) == ("v4.1-flash", "sm_90", 64)
        and not asked["drafts"]
    }
    assert groups == {(8, *(32,) * 7, 64)}


@needs_engines
@pytest.mark.parametrize("engine", planned.PLANNERS)
def test_the_planner_answers_as_recorded(engine: str) -> None:
    assert planned.answered(engine) == list(planned.read_settings(engine))
