"""vLLM's rules against its own integers.

Sources: vLLM 0.26.0 and 0.33.0, a start-up log of each, and the refusal of vllm#44376.
"""

from dataclasses import replace

import pytest

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import find_engine
from dsv4kv.engines.vllm.sizes import VllmEngine
from dsv4kv.errors import ConfigError
from tests.engines.sizing.deployments import deploy, variant


def vllm(version: str) -> VllmEngine:
    engine = find_engine(f"vllm:{version}")
    assert isinstance(engine, VllmEngine)
    return engine


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
