"""What every engine's rules must keep to, engines by name, and TensorRT-LLM's derived sizes."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import ENGINES, find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import choose_formats
from tests.engines.sizing.deployments import GIB, deploy, deployments, preset, variant

OTHERS = [name for name in ENGINES if name != "dsv4kv"]
VLLM = [name for name in ENGINES if name.startswith("vllm")]
TOKENS = st.integers(1, 2**20)
FLIGHT = st.integers(1, 40_000)


@pytest.mark.parametrize("name", OTHERS)
@given(deployments(), TOKENS, TOKENS, FLIGHT, FLIGHT)
def test_a_request_never_takes_less_for_more_tokens_or_more_in_flight(
    name: str, deployment: Deployment, tokens: int, more: int, flight: int, further: int
) -> None:
    engine = find_engine(name)
    small = engine.request_bytes(deployment, tokens, in_flight=flight)
    assert small <= engine.request_bytes(deployment, tokens + more, in_flight=flight)
    assert small <= engine.request_bytes(deployment, tokens, in_flight=flight + further)


@pytest.mark.parametrize("name", OTHERS)
@given(deployments(), st.integers(0, 300 * GIB), st.integers(0, 8 * GIB))
def test_more_memory_never_holds_less(
    name: str, deployment: Deployment, memory: int, more: int
) -> None:
    engine = find_engine(name)
    small, large = (engine.capacity(deployment, size) for size in (memory, memory + more))
    assert small.units <= large.units
    assert (small.printed_tokens or 0) <= (large.printed_tokens or 0)
    assert small.cache_bytes <= memory


@pytest.mark.parametrize("name", VLLM)
@given(deployments(), st.integers(1, 4096))
def test_costs_of_the_pools_add_up_to_the_blocks_of_a_request(
    name: str, deployment: Deployment, blocks: int
) -> None:
    tokens = 256 * blocks
    deployment = replace(deployment, max_context_tokens=tokens)
    engine = find_engine(name)
    costs = engine.costs(deployment)
    per_token = sum((cost.marginal_bytes + cost.padding_bytes for cost in costs), Fraction(0))
    fixed = sum(cost.fixed_bytes + cost.in_flight_bytes for cost in costs)
    assert fixed + per_token * tokens == engine.request_bytes(
        deployment, tokens, in_flight=deployment.in_flight_tokens
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("vllm", "vllm:0.33"),
        ("VLLM:v0.33.0", "vllm:0.33"),
        ("vllm:0.30.1", "vllm:0.30"),
        ("vllm:0.24", "vllm:0.25"),
        ("vllm:0.26.1rc1", "vllm:0.26.1"),
        ("vllm:0.20.2", "vllm:0.22"),
        ("sglang", "sglang:0.5.23"),
        ("sglang:0.5.15.post1", "sglang:0.5.17"),
    ],
)
def test_a_version_takes_the_rules_that_cover_it(given: str, expected: str) -> None:
    assert find_engine(given).name == expected


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("vllm:0.34", "the nearest is vllm:0.33"),
        ("vllm:0.19.1", "only from 0.20 on: the nearest is vllm:0.22"),
        ("sglang:0.5.11", "only from 0.5.12 on: the nearest is sglang:0.5.12"),
        ("vllm:new", "names no version: give one of vllm:0.22"),
        ("vlm", "no engine 'vlm' .did you mean vllm"),
        ("tgi", "give one of dsv4kv, vllm:0.22"),
    ],
)
def test_an_unknown_engine_or_version_names_the_nearest(given: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_engine(given)


@pytest.mark.parametrize(
    ("name", "layers", "stages", "expected"),
    [
        ("vllm:0.33", 43, 4, (11, 11, 11, 10)),
        ("vllm:0.33", 61, 4, (15, 15, 16, 15)),
        ("sglang:0.5.23", 43, 4, (10, 11, 11, 11)),
        ("sglang:0.5.15", 61, 4, (15, 15, 15, 16)),
        ("dsv4kv", 61, 4, (16, 15, 15, 15)),
    ],
)
def test_layers_are_spread_over_stages_as_the_engine_spreads_them(
    name: str, layers: int, stages: int, expected: tuple[int, ...]
) -> None:
    """vLLM 0.33.0 and SGLang 0.5.15 to 0.5.23: ``get_pp_indices``, run."""
    assert find_engine(name).stage_layers(layers, stages) == expected


def mixed(main: str, window: str, model: str = "v4-flash", **changes: Any) -> Deployment:
    """A deployment whose windows have another format than the rest."""
    formats = choose_formats(preset(model), main, window, "fp8")
    return replace(deploy(model, **changes), formats=formats)


@pytest.mark.parametrize(
    ("engine", "deployment", "sentence"), [
        ("trtllm", deploy("v4.1-flash"), "which v4.1-flash is not"),
        ("trtllm", deploy(block_tokens=512), "takes 128 or 256"),
        ("trtllm", deploy(state_bytes=2), "in float32"),
        ("trtllm", deploy(indexer="bf16"), "fp8 or mxfp4"),
        ("trtllm", mixed("bf16", "fp8"), "in one format, not fp8 and bf16"),
        ("sglang", deploy("v4.1-flash"), "V4.1's indexer keys in mxfp4, not fp8"),
        ("sglang", deploy("v4.1-flash", main="bf16", indexer="mxfp4"),
         "fp4 and fp8_group32; .*, not bf16"),
        ("sglang", deploy("v3.2", indexer="mxfp4"), "V3.2's indexer keys in fp8, not mxfp4"),
        ("sglang", deploy(main="bf16"), "for fp8_ds_mla and fp8_ds_mla, not bf16 and bf16"),
        ("sglang", deploy(state_bytes=1), "fp32 or bf16"),
        ("sglang", deploy(block_tokens=64), "multiples of 128"),
        ("sglang", deploy(online_state=True, drafts=1), "cannot be rolled back"),
        ("sglang", deploy(window_ratio=0.0), "more than 0, up to 1"),
        ("vllm", replace(deploy(), model=variant((0, 2, 1))), "which variant is not"),
        ("vllm", mixed("fp4", "fp8_group32", "v4.1-flash"),
         "not in fp4 with windows in fp8_group32"),
        ("vllm", deploy("v4.1-flash", block_tokens=96), "a multiple of 64 for V4.1"),
        ("vllm", deploy("v4.1-flash", layers=tuple(range(10, 20))),
         "layer 10 reads the KV of layer 8, .* begin at layer 2, 8, 14, 20"),
        ("vllm", deploy(state_bytes=2), "choose the state fp32"),
        ("vllm", deploy(online_state=True), "choose the state fp32"),
        ("vllm", deploy(indexer="bf16"), "in fp8 or mxfp4, not bf16"),
        ("vllm", deploy(block_tokens=100), "a multiple of 128"),
        ("vllm", replace(deploy(), model=variant((0, 0))), "at least one CSA or HCA layer"),
        ("vllm", mixed("bf16", "fp8_ds_mla"), "in one format, not fp8_ds_mla and bf16"),
    ]
)  # fmt: skip
def test_what_an_engine_does_not_serve_is_told_in_a_sentence(
    engine: str, deployment: Deployment, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_engine(engine).costs(deployment)
