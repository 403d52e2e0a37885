"""vLLM's rules against its own integers.

Sources: vLLM 0.26.0 and 0.33.0, a start-up log of each, and the refusal of vllm#44376.
"""

from dataclasses import replace

import pytest

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import find_engine
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.errors import ConfigError
from tests.engines.logs.startup import REFUSAL, VLLM_0_26, VLLM_0_33
from tests.engines.sizing.deployments import GIB, MILLION, deploy, variant


def vllm(version: str) -> VllmEngine:
    engine = find_engine(f"vllm:{version}")
    assert isinstance(engine, VllmEngine)
    return engine


@pytest.mark.parametrize(
    ("version", "model", "drafts", "expected"),
    [
        ("0.33", "v4-flash", 0, 1_002_240),
        ("0.33", "v4-pro", 1, 1_435_968),
        ("0.26", "v4-flash", 0, 1_039_680),
        ("0.26", "v4-flash", 1, 1_039_680),
        ("0.26", "v4-flash", 3, 1_077_120),
        ("0.26", "v4-pro", 1, 1_473_408),
        ("0.22", "v4-flash", 0, 22 * (37_440 + 8_640 + 1_728)),
    ],
)
def test_a_block_has_its_published_bytes(
    version: str, model: str, drafts: int, expected: int
) -> None:
    layout = vllm(version).layout(deploy(model, drafts=drafts))
    assert layout.unit_bytes == expected


@pytest.mark.parametrize(
    ("version", "deployment", "unit_bytes", "units", "per_request", "log"), [
        ("0.26", deploy(context=912_128, flight=8192, drafts=1), 1_039_680, 7_236, 6_537,
         VLLM_0_26[3:]),
        ("0.33", deploy(context=33_792, flight=16_896, drafts=3), 1_002_240, 13_270, 7_022,
         VLLM_0_33[2:]),
    ]
)  # fmt: skip
def test_a_log_is_met_to_the_last_integer(
    version: str,
    deployment: Deployment,
    unit_bytes: int,
    units: int,
    per_request: int,
    log: tuple[str, ...],
) -> None:
    capacity = vllm(version).capacity(deployment, units * unit_bytes)
    assert (capacity.units, int(capacity.units_per_request)) == (units, per_request)
    assert capacity.log_lines[-len(log) :] == log
    assert f"size: {capacity.printed_tokens:,} tokens" in " ".join(log)


def test_the_refusal_of_vllm_44376_is_met_to_the_last_integer() -> None:
    """vLLM 0.22, Flash, 16,384 tokens in flight: 6.66 GiB needed, 13,528 tokens would fit."""
    engine, deployment = vllm("0.22"), deploy(context=30_000, flight=16_384)
    memory = engine.needed_bytes(deployment, 13_528)
    capacity = engine.capacity(deployment, memory)
    assert round(memory / GIB, 2) == 5.44
    assert capacity.printed_tokens is None
    assert capacity.log_lines[-1].startswith(REFUSAL[0].partition("Try increasing")[0])


@pytest.mark.parametrize(("flight", "expected"), [(2048, 758), (8192, 2969), (16_384, 5917)])
def test_the_reserve_in_flight_has_its_published_blocks(flight: int, expected: int) -> None:
    """Counted as 0.26 does, weighted by each group's bytes."""
    counted = vllm("0.26").blocks_counted(deploy(flight=flight), MILLION)
    assert counted - MILLION // 256 == expected


@pytest.mark.parametrize(
    ("version", "ratios", "deployment", "expected"), [
        ("0.26", (128, 128, 128, 4, 4, 0, 128, 4, 128, 4),
         deploy(context=131_072, flight=1, main="bf16", indexer="mxfp4", block_tokens=512,
                layers=(2,)), (135_168, 1_786, 5_775_360)),
        ("0.25", (0, 0, 128, 0, 4, 4, 0, 4),
         deploy(context=912_128, flight=8192, layers=(0, 1, 2, 3)), (76_608, 201_552, 36_536_832)),
    ]
)  # fmt: skip
def test_a_stage_without_layers_of_a_group_weighs_it_as_the_whole_model_does(
    version: str, ratios: tuple[int, ...], deployment: Deployment, expected: tuple[int, ...]
) -> None:
    """Bytes of a block, blocks of a request, bytes the start asks for; as vLLM's planner gives."""
    engine, stage = vllm(version), replace(deployment, model=variant(ratios))
    context = stage.max_context_tokens
    unit = engine.layout(stage).unit_bytes
    needed = engine.needed_bytes(stage, context)
    assert (unit, engine.blocks_counted(stage, context), needed) == expected


def test_a_model_without_csa_layers_is_served_where_pages_need_no_common_place() -> None:
    """States fill what a window block must hold anyway: one page in every group."""
    deployment = replace(deploy(), model=variant((128, 128)))
    layout = vllm("0.33").layout(deployment)
    assert [group.page_bytes for group in layout.groups] == [3_456, *[37_440] * 2, *[32_832] * 2]
    with pytest.raises(ConfigError, match="it needs a CSA layer"):
        vllm("0.26").layout(deployment)


def test_blocks_too_small_for_a_window_page_are_refused_where_they_share_its_place() -> None:
    small = deploy(block_tokens=128)
    with pytest.raises(ConfigError, match="blocks of 256 tokens or more"):
        vllm("0.26").layout(small)
    assert vllm("0.33").layout(small).unit_bytes == 870_912  # the states are the widest group
