"""Logs of V4.1 are explained by what the engines' own planners made of their settings.

vLLM's lines hold the integers of vLLM 0.33.0's planner, SGLang's are those that its configurator
printed (``tests/engines/oracles``).
"""

from typing import Any

import pytest

from dsv4kv.engines.explain import explain_startup
from dsv4kv.errors import ConfigError
from tests.engines.logs.startup import parsed
from tests.engines.oracles.planned import read_settings
from tests.engines.oracles.starts import read_starts

GIB = 2**30
MODEL = "model='deepseek-ai/DeepSeek-V4.1-Flash'"
_METHOD = {0: "None", 1: "mtp", 3: "dspark"}


def vllm_log(asked: dict[str, Any]) -> list[str]:
    told, context = asked["answer"], asked["context"]
    ratio = told["blocks"] / told["request_blocks"]
    return [
        (
            f"Initializing a V1 LLM engine (v0.33.0) with config: {MODEL}, max_seq_len={context}, "
            f"tensor_parallel_size=1, max_num_batched_tokens={asked['flight']}, "
            f"async_scheduling=False, block_size={asked['block']}, "
            f"method='{_METHOD[asked['drafts']]}', "
            f"num_speculative_tokens={asked['draft_tokens']}, "
            f"use_fp4_indexer_cache={asked['mxfp4']}"
        ),
        f"Available KV cache memory: {asked['memory'] / GIB:.2f} GiB",
        (
            f"GPU KV cache size: {told['printed_tokens']:,} tokens, Maximum concurrency for "
            f"{context:,} tokens per request: {ratio:.2f}x"
        ),
    ]


VLLM = [
    asked
    for asked in read_settings("vllm")
    if asked["kind"] == "v41"
    and asked["arch"] in ("sm_90", "sm_100")
    and not asked["plain"]
    and asked["answer"]["blocks"] > asked["answer"]["request_blocks"]
][:24]


@pytest.mark.parametrize("asked", VLLM, ids=lambda asked: f"{asked['arch']}-{asked['context']}")
def test_vllms_lines_of_v41_give_its_planners_blocks(asked: dict[str, Any]) -> None:
    explained, found = explain_startup(parsed(vllm_log(asked)))
    assert explained.exact
    assert explained.engine == "vllm:0.33"
    assert explained.printed_tokens == asked["answer"]["printed_tokens"]
    assert explained.units == asked["answer"]["blocks"]
    assert (found.deployment.model.name, found.deployment.in_flight_tokens) == (
        "v4.1-flash",
        asked["flight"],
    )


def sglang_log(asked: dict[str, Any]) -> list[str]:
    return [
        (
            f"server_args=ServerArgs({MODEL}, max_running_requests={asked['requests']}, "
            f"dp_size={asked['dp']}, chunked_prefill_size={asked['chunk']}, "
            f"disable_radix_cache={not asked['prefix_cache']}, "
            f"disable_overlap_schedule={not asked['overlap']}, "
            f"swa_full_tokens_ratio={asked['ratio']})"
        ),
        f"sglang version {asked['version']}",
        *asked["answer"]["lines"],
    ]


SGLANG = [
    asked
    for asked in read_starts()
    if asked["kind"] == "v41"
    and asked["stages"] == 1
    and not asked["drafts"]
    and not asked["answer"]["refusal"]
]


def test_sglangs_lines_of_v41_give_its_full_tokens() -> None:
    assert len(SGLANG) > 15
    for asked in SGLANG:
        explained, found = explain_startup(parsed(sglang_log(asked)))
        assert (explained.exact, explained.units) == (True, asked["answer"]["full"])
        assert found.deployment.model.name == "v4.1-flash"
        newest = "0.5.23" if asked["version"] == "0.5.23" else "0.5.22"
        assert explained.engine == f"sglang:{newest}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kv_cache_dtype=nvfp4", "the cache dtype 'nvfp4'"),
        ("kv_cache_dtype=bfloat16", "the cache dtype 'bfloat16'"),
        ("Resolved architecture: DeepseekV4ForCausalLM", "of 'DeepseekV4ForCausalLM'"),
        ("Resolved architecture: Qwen3ForCausalLM", "of 'Qwen3ForCausalLM'"),
    ],
)
def test_a_log_of_v41_that_says_something_unknown_is_not_understood(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"not understood: .*{said}"):
        explain_startup(parsed([*vllm_log(VLLM[0]), line]))


STAGES = [
    asked
    for asked in read_starts()
    if asked["stages"] > 1
    and not asked["draft_tokens"]
    and not asked["overlap"]
    and not asked["answer"]["refusal"]
]


def test_a_stages_line_is_explained_with_its_layers() -> None:
    """What SGLang's ranks of a pipeline print, of V4 and V4.1."""
    assert len(STAGES) > 15
    for asked in STAGES:
        name = {"v4-flash": "V4-Flash", "v4-pro": "V4-Pro", "v4.1-flash": "V4.1-Flash"}
        log = [line.replace("V4.1-Flash", name[asked["model"]]) for line in sglang_log(asked)]
        explained, found = explain_startup(parsed(log))
        assert (explained.exact, explained.units) == (True, asked["answer"]["full"])
        assert found.deployment.layers == tuple(range(*asked["held"]))


ENCODER = [
    asked
    for asked in read_settings("sglang")
    if asked.get("encoder") and asked["held"] == [0, 40] and asked["answer"]["full"]
]


def test_logs_with_windows_of_every_requests_own_are_explained() -> None:
    """SGLang's encoder replay, on Hopper and with flashmla_mega, with and without drafts."""
    assert len(ENCODER) > 10
    for asked in ENCODER:
        told = asked["answer"]
        log = [
            (
                f"server_args=ServerArgs({MODEL}, max_running_requests={asked['requests']}, "
                f"chunked_prefill_size={asked['chunk']}, page_size={asked['page']}, "
                f"speculative_algorithm={'DSPARK' if asked['drafts'] else None}, "
                f"speculative_num_draft_tokens={asked['draft_tokens']}, "
                "enable_encoder_swa_bounded_replay=True)"
            ),
            "sglang version 0.5.23",
            (
                f"DSV4 memory calculation: bytes_per_full_token={told['token_bytes']:.2f}, "
                f"available_bytes={asked['memory'] / GIB:.2f} GB, full_token={told['full']}"
            ),
        ]
        explained, found = explain_startup(parsed(log))
        assert (explained.exact, explained.units) == (True, told["full"])
        assert found.deployment.window_slots == "own"
