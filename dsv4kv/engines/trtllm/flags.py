"""Flags of TensorRT-LLM. Source: ``trtllm-serve``."""

from collections.abc import Callable

from dsv4kv.engines.flags import (
    GRAPHS,
    HOST,
    NOTHING,
    OWN_DRAFTS,
    TOKENS,
    Flag,
    Meaning,
    Texts,
    as_is,
    counted,
    find_drafts,
    flag,
    read_object,
    switch,
    switched,
)
from dsv4kv.errors import ConfigError


def _plain_dtype(text: str) -> Texts:
    """TensorRT-LLM's, which has no formats by GPU and backend: FP8 is one scale for a tensor."""
    if text == "auto":
        return {}
    name = {"bfloat16": "bf16", "bf16": "bf16"}.get(text, "fp8" if text.startswith("fp8") else "")
    if not name:
        raise ConfigError(f"{text!r} is no cache dtype of DeepSeek-V4: fp8, auto or bfloat16.")
    return {"main-format": name, "window-format": name}


def _nested(names: dict[str, Callable[[str], Texts]]) -> Meaning:
    """The settings that an object's keys mean, those alone that are known."""

    def read(text: str) -> Texts:
        found: Texts = {}
        for key, value in read_object(text).items():
            if key in names and value is not None:
                found |= names[key](str(value))
        return found

    return Meaning(read)


def _drafts(text: str) -> Texts:
    found = read_object(text)
    texts = find_drafts(str(found.get("decoding_type", "")))
    counts = [found.get(key) for key in ("max_draft_len", "num_nextn_predict_layers")]
    count = next((each for each in counts if isinstance(each, int)), None)
    return texts | ({OWN_DRAFTS: str(count)} if texts and count else {})


def _keys(text: str) -> Texts:
    return {"indexer-format": "mxfp4" if "4" in text else "fp8"}


_CACHE = {
    "free_gpu_memory_fraction": as_is("memory-fraction").of,
    "tokens_per_block": counted("block-tokens").of,
    "dtype": _plain_dtype,
    "max_tokens": counted(TOKENS).of,
    "enable_block_reuse": switched("prefix-cache", "on", "off").of,
}

FLAGS: tuple[Flag, ...] = (
    flag("--model --model_path", "the model", as_is("model")),
    flag("--tp_size --tp --tensor_parallel_size", "ranks", counted("tp")),
    flag("--pp_size --pp --pipeline_parallel_size", "stages", counted("pp")),
    flag("--ep_size --ep --moe_expert_parallel_size --expert_parallel_size",
         "spreads the experts", counted("ep")),
    switch("--enable_attention_dp", "every rank has requests and a cache of its own",
           switched("dp-attention", "all")),
    flag("--max_seq_len", "the longest request", counted("context")),
    flag("--max_batch_size", "concurrent requests, with attention DP of every rank",
         counted("request-limit")),
    flag("--max_num_tokens", "tokens of a step", counted("step-tokens")),
    flag(
        "--kv_cache_free_gpu_memory_fraction --free_gpu_memory_fraction",
        "share of what weights and a step leave free",
        as_is("memory-fraction"),
    ),
    flag("--kv_cache_dtype", "bytes of an entry", Meaning(_plain_dtype)),
    flag("--kv_block_size --tokens_per_block", "tokens of a block", counted("block-tokens")),
    flag("--kv_cache_config", "share, block, dtype and bounds of the cache", _nested(_CACHE)),
    flag("--speculative_config", "windows of draft layers", Meaning(_drafts)),
    flag("--sparse_attention_config", "bytes of an indexer key",
         _nested({"indexer_k_dtype": _keys})),
    flag("--disaggregation_mode", "nothing: pools are the same on both sides", NOTHING),
    flag("--enable_chunked_prefill --moe_config --cache_transceiver_config", "nothing", NOTHING),
    flag("--cuda_graph_config", GRAPHS),
    flag("--host_cache_size", f"{HOST}, which is not sized"),
    flag("--extra_llm_api_options --extra_engine_args --config",
         "a file of settings, which is not read"),
)  # fmt: skip
"""In the order in which they are listed."""
