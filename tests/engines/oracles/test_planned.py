"""Sizes are those of vLLM's own planner, to the byte, on 500 random settings of V4, V4.1, V3.2."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.engines.registry import find_engine
from dsv4kv.engines.vllm.sizing import VllmEngine
from tests.engines.oracles.planned import (
    ENGINE,
    SETTINGS,
    answered,
    deployment_of,
    read_settings,
)


def found(asked: dict[str, Any]) -> dict[str, Any]:
    engine = find_engine(ENGINE)
    assert isinstance(engine, VllmEngine)
    deployment = deployment_of(asked)
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


def test_500_random_settings_are_sized_as_the_planner_sizes_them() -> None:
    settings = read_settings()
    assert len(settings) == SETTINGS >= 500
    assert Counter(asked["kind"] for asked in settings)["v41"] > 150
    unlike = [asked for asked in settings if found(asked) != asked["answer"]]
    assert unlike == []


def test_v41_has_the_groups_that_vllm_prints() -> None:
    """vllm#56871: blocks of 64 tokens, seven groups of windows of 32, a ring of 8."""
    groups = {
        tuple(asked["answer"]["group_tokens"])
        for asked in read_settings()
        if (asked["model"], asked["arch"], asked["block"]) == ("v4.1-flash", "sm_90", 64)
        and not asked["drafts"]
    }
    assert groups == {(8, *(32,) * 7, 64)}


@pytest.mark.skipif(
    "DSV4KV_ENGINES" not in os.environ,
    reason="the engines' packages are not unpacked here: make engines",
)
def test_the_planner_answers_as_recorded() -> None:
    assert answered(Path(os.environ["DSV4KV_ENGINES"])) == list(read_settings())
