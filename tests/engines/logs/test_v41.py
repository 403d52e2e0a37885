"""Logs of V4.1 are explained by what the engines' own planners made of their settings.

vLLM's lines hold the integers of vLLM 0.33.0's planner, SGLang's are those that its configurator
printed (``tests/engines/oracles``).
"""

from typing import Any

import pytest

from dsv4kv.engines.explain import explain_startup
from tests.engines.logs.startup import parsed
from tests.engines.oracles.planned import read_settings

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


NAMES = {"v4-flash": "V4-Flash", "v4-pro": "V4-Pro", "v4.1-flash": "V4.1-Flash"}


def sglang_log(asked: dict[str, Any]) -> list[str]:
    told, encoder = asked["answer"], asked["encoder"]
    drafts = "DSPARK" if encoder and asked["drafts"] else None
    lines = told.get("lines") or [
        (
            f"DSV4 memory calculation: bytes_per_full_token={told['token_bytes']:.2f}, "
            f"available_bytes={asked['memory'] / GIB:.2f} GB, full_token={told['full']}"
        )
    ]
    return [
        (
            f"server_args=ServerArgs(model='deepseek-ai/DeepSeek-{NAMES[asked['model']]}', "
            f"max_running_requests={asked['requests']}, dp_size={asked.get('dp', 1)}, "
            f"chunked_prefill_size={asked['chunk']}, page_size={asked['page']}, "
            f"disable_radix_cache={not asked['prefix_cache']}, "
            f"disable_overlap_schedule={not asked['overlap']}, "
            f"speculative_algorithm={drafts}, "
            f"speculative_num_draft_tokens={asked['draft_tokens'] or None}, "
            f"enable_encoder_swa_bounded_replay={encoder}, swa_full_tokens_ratio={asked['ratio']})"
        ),
        f"sglang version {asked.get('version', '0.5.23')}",
        *lines,
    ]


STARTS = [asked for asked in read_settings("starts") if not asked["answer"]["refusal"]]
SGLANG = {
    "V4.1": [
        asked
        for asked in STARTS
        if (asked["kind"], asked["stages"], asked["drafts"]) == ("v41", 1, 0)
    ],
    "stages of V4 and V4.1": [
        asked
        for asked in STARTS
        if asked["stages"] > 1 and not asked["draft_tokens"] and not asked["overlap"]
    ],
    "windows of every request's own": [
        asked
        for asked in read_settings("sglang")
        if asked["encoder"] and asked["held"] == [0, 40] and asked["answer"]["full"]
    ],
}


@pytest.mark.parametrize("kind", SGLANG)
def test_sglangs_lines_give_its_full_tokens(kind: str) -> None:
    """Encoder replay is on Hopper and with flashmla_mega, with and without drafts."""
    assert len(SGLANG[kind]) > 10
    for asked in SGLANG[kind]:
        explained, found = explain_startup(parsed(sglang_log(asked)))
        assert (explained.exact, explained.units) == (True, asked["answer"]["full"])
        assert found.deployment.model.name == asked["model"]
        assert found.deployment.window_slots == ("own" if asked["encoder"] else None)
        newest = "0.5.23" if asked.get("version", "0.5.23") == "0.5.23" else "0.5.22"
        assert explained.engine == f"sglang:{newest}" or kind.startswith("stages")
        if asked.get("stages", 1) > 1:
            assert found.deployment.layers == tuple(range(*asked["held"]))
