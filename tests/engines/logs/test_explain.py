"""What a log's number means."""

import pytest

from dsv4kv.engines.explain import Explanation, explain_startup
from dsv4kv.errors import ConfigError
from tests.engines.logs.startup import (
    BLOCKS_GIVEN,
    KTRANSFORMERS,
    SGLANG,
    VLLM_0_26,
    VLLM_0_33,
    WINDOWS_KEPT,
    parsed,
)


def explained(lines: list[str] | tuple[str, ...]) -> Explanation:
    return explain_startup(parsed(lines))[0]


@pytest.mark.parametrize(
    ("lines", "sentence"), [
        # numbers without a model may be of any
        ([line.replace("1.11x", "7.11x") for line in VLLM_0_26[3:]],
         "not understood: its numbers follow from no known"),
        (["GPU KV cache size: 1,009,661 tokens"], "not for how many tokens per request"),
        (["Platform plugin ascend is activated", *VLLM_0_26], "vLLM on Ascend is vllm-ascend"),
        *(([f"model='/m/{model}'", *VLLM_0_33[1:]], "not understood: .* whose cache the rules do")
          for model in ("DeepSeek-V4.2-Flash", "DeepSeek-V3.2", "Qwen3-32B")),
        (["llama_model_loader: - kv 2: general.name str = DeepSeek V4.1 Flash",
          "srv load_model: initializing, n_slots = 4, n_ctx_slot = 32768, kv_unified = 'true'"],
         "'deepseek v4.1 flash', whose cache the rules do not"),
        *(([line, *VLLM_0_33], "not understood: the log is of 'DeepseekV")
          for line in ("Resolved architecture: DeepseekV41ForCausalLM",
                       "hf_config=Config(architectures=['DeepseekV32ForCausalLM'])")),
        *(([VLLM_0_33[0].replace("V4-", "V4.1-"), *VLLM_0_33[1:], line],
           f"not understood: .*{said}")
          for line, said in (
              ("kv_cache_dtype=nvfp4", "the cache dtype 'nvfp4'"),
              ("kv_cache_dtype=bfloat16", "the cache dtype 'bfloat16'"),
              ("Resolved architecture: DeepseekV4ForCausalLM", "of 'DeepseekV4ForCausalLM'"),
              ("Resolved architecture: Qwen3ForCausalLM", "of 'Qwen3ForCausalLM'"))),
    ]
)  # fmt: skip
def test_a_log_that_cannot_be_explained_says_why(lines: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        explained(lines)


def test_a_limit_of_requests_that_binds_is_raised_and_never_lowered() -> None:
    short = [line.replace("=1048576", "=9472") for line in SGLANG]
    found = explained(short)
    assert found.fits[-1].requests == 64 < found.fits[-1].held
    first, *others = found.changes
    assert first.requests is not None
    assert 64 < first.requests < found.fits[-1].held  # every one has states, one is in prefill
    assert first.what == f"--max-running-requests {first.requests}"
    assert not [change for change in others if "running-requests" in change.what]


def test_a_longer_request_never_fits_more_often() -> None:
    kept = explained(("SGLang version 0.5.17", *WINDOWS_KEPT))
    assert kept.engine == "sglang:0.5.17"
    assert [fit.requests for fit in kept.fits] == [256, 54, 13, 1]
    few = explained(KTRANSFORMERS)  # 129,792 window slots
    assert [fit.held for fit in few.fits] == [31, 3, 0, 0]


def test_versions_that_print_the_same_and_hold_another_number_are_named() -> None:
    first = explained(WINDOWS_KEPT).meaning[0]
    assert "sglang:0.5.17 prints the same and runs 1 request of 1,048,576 tokens, not 17" in first
    assert not [each for each in explained(SGLANG).meaning if "prints the same" in each]


@pytest.mark.parametrize(
    ("setting", "gone", "instead"),
    [
        ("kv_cache_memory_bytes=32212254720", "--gpu-memory-utilization", "--kv-cache-memory"),
        ("num_gpu_blocks_override=5000", "--gpu-memory-utilization", "--num-gpu-blocks-override"),
        ("max_num_seqs=2048", "--max-num-batched-tokens", "--gpu-memory-utilization"),
        ("enable_chunked_prefill=False", "--max-num-batched-tokens", "--gpu-memory-utilization"),
    ],
)
def test_no_lever_of_vllm_is_refused_or_changes_nothing(
    setting: str, gone: str, instead: str
) -> None:
    lines = (setting, *(BLOCKS_GIVEN if "blocks" in setting else VLLM_0_33))
    levers = " ".join(change.what for change in explained(lines).changes)
    assert gone not in levers
    assert instead in levers
