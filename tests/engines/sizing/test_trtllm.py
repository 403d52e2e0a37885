"""TensorRT-LLM's rules, derived from its source."""

from dataclasses import replace
from fractions import Fraction

import pytest

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.trtllm.sizes import TrtllmEngine
from dsv4kv.errors import ConfigError
from dsv4kv.model.schema import choose_formats
from tests.engines.sizing.deployments import deploy

ENGINE = TrtllmEngine()


@pytest.mark.parametrize(
    ("model", "main", "indexer", "expected"),
    [
        ("v4-flash", "bf16", "fp8", 6_229),
        ("v4-flash", "fp8", "fp8", 3_461),
        ("v4-flash", "fp8", "mxfp4", 3_125),
        ("v4-flash", "fp8_ds_mla", "mxfp4", 3_503),
        ("v4-pro", "bf16", "fp8", 8_918),
        ("v4-pro", "fp8", "fp8", 4_954),
        ("v4-pro", "fp8", "mxfp4", 4_474),
        ("v4-pro", "fp8_ds_mla", "mxfp4", 5_014),
    ],
)
def test_a_token_has_its_derived_bytes(model: str, main: str, indexer: str, expected: int) -> None:
    costs = ENGINE.costs(deploy(model, main=main, indexer=indexer))
    assert sum((cost.marginal_bytes for cost in costs), Fraction(0)) == expected


def test_windows_and_states_are_whole_blocks_that_grow_with_the_drafts() -> None:
    plain, drafted = (
        {(cost.pool, cost.layer_type): cost.fixed_bytes for cost in ENGINE.costs(deployment)}
        for deployment in (deploy(), deploy(drafts=1, draft_tokens=1))
    )
    assert plain["window", "all"] == 43 * 128 * 584
    assert drafted["window", "all"] == 2 * plain["window", "all"]
    assert drafted["window", "draft"] == 256 * 584
    assert plain["state", "csa"] == 21 * 128 * (512 + 128) * 2 * 2 * 4
    assert plain["state", "hca"] == 20 * 128 * 512 * 2 * 4


@pytest.mark.parametrize(
    ("deployment", "sentence"),
    [
        (deploy("v4.1-flash"), "which v4.1-flash is not"),
        (deploy(block_tokens=512), "takes 128 or 256"),
        (deploy(state_bytes=2), "in float32"),
        (deploy(indexer="bf16"), "fp8 or mxfp4"),
        (
            replace(deploy(), formats=choose_formats(deploy().model, "bf16", "fp8")),
            "in one format, not fp8 and bf16",
        ),
    ],
)
def test_what_it_does_not_serve_is_told_in_a_sentence(
    deployment: Deployment, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ENGINE.costs(deployment)
