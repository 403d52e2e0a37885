"""What a log's number means."""

import pytest

from dsv4kv.engines.logs.explain import Explanation, explain_startup
from dsv4kv.errors import ConfigError
from tests.engines.logs.startup import SGLANG, VLLM_0_26, VLLM_0_33, parsed


def explained(lines: list[str] | tuple[str, ...]) -> Explanation:
    return explain_startup(parsed(lines))[0]


def test_numbers_of_no_known_rules_without_a_model_are_not_explained() -> None:
    """They may be of any model."""
    strange = [line.replace("1.11x", "7.11x") for line in VLLM_0_26[3:]]
    with pytest.raises(ConfigError, match="not understood: its numbers follow from no known"):
        explained(strange)


def test_a_size_without_its_length_cannot_be_explained() -> None:
    with pytest.raises(ConfigError, match="not for how many tokens per request"):
        explained(["GPU KV cache size: 1,009,661 tokens"])


def test_a_log_of_ascend_is_not_explained_by_the_rules_of_cuda() -> None:
    lines = ["Platform plugin ascend is activated", *VLLM_0_26]
    with pytest.raises(ConfigError, match="vLLM on Ascend is vllm-ascend"):
        explained(lines)


def test_levers_of_sglang_can_be_typed() -> None:
    changes = {change.what for change in explained(SGLANG).changes}
    assert {
        "--swa-full-tokens-ratio 0.05",
        "--max-running-requests 32",
        "1 GiB more memory (--mem-fraction-static)",
        "SGLANG_OPT_USE_ONLINE_COMPRESS=1 (changes numerics)",
    } <= changes


def test_levers_of_vllm_can_be_typed() -> None:
    assert {
        "--max-num-batched-tokens 1024 (2,048 tokens in flight)",
        "1 GiB more memory (--gpu-memory-utilization)",
        "--attention-config '{\"use_fp4_indexer_cache\": true}' (changes numerics)",
    } <= {change.what for change in explained(VLLM_0_33).changes}


def test_a_limit_of_requests_that_binds_is_raised_and_never_lowered() -> None:
    short = [line.replace("=1048576", "=9472") for line in SGLANG]
    found = explained(short)
    assert found.fits[-1].requests == 64 < found.fits[-1].held
    first, *others = found.changes
    assert first.requests is not None
    assert 64 < first.requests < found.fits[-1].held  # every one has states, one is in prefill
    assert first.what == f"--max-running-requests {first.requests}"
    assert not [change for change in others if "running-requests" in change.what]
