"""TensorRT-LLM: its one version that is sized, and its flags."""

from collections.abc import Callable

from dsv4kv.engines import flags as fl
from dsv4kv.engines.rule import Family, Launch
from dsv4kv.errors import ConfigError

# ---- flags. Source: ``trtllm-serve``.


def _plain_dtype(text: str) -> fl.Texts:
    """TensorRT-LLM's, which has no formats by GPU and backend: FP8 is one scale for a tensor."""
    if text == "auto":
        return {}
    name = {"bfloat16": "bf16", "bf16": "bf16"}.get(text, "fp8" if text.startswith("fp8") else "")
    if not name:
        raise ConfigError(f"{text!r} is no cache dtype of DeepSeek-V4: fp8, auto or bfloat16.")
    return {"main-format": name, "window-format": name}


def _nested(names: dict[str, Callable[[str], fl.Texts]]) -> fl.Meaning:

    def read(text: str) -> fl.Texts:
        found: fl.Texts = {}
        for key, value in fl.read_object(text).items():
            if key in names and value is not None:
                found |= names[key](str(value))
        return found

    return fl.Meaning(read)


def _drafts(text: str) -> fl.Texts:
    found = fl.read_object(text)
    texts = fl.find_drafts(str(found.get("decoding_type", "")))
    counts = [found.get(key) for key in ("max_draft_len", "num_nextn_predict_layers")]
    count = next((each for each in counts if isinstance(each, int)), None)
    return texts | ({fl.OWN_DRAFTS: str(count)} if texts and count else {})


def _keys(text: str) -> fl.Texts:
    return {"indexer-format": "mxfp4" if "4" in text else "fp8"}


_CACHE = {
    "free_gpu_memory_fraction": fl.as_is("memory-fraction").of,
    "tokens_per_block": fl.counted("block-tokens").of,
    "dtype": _plain_dtype,
    "max_tokens": fl.counted(fl.TOKENS).of,
    "enable_block_reuse": fl.switched("prefix-cache", "on", "off").of,
}

FLAGS = (
    fl.flag("--model --model_path", "the model", fl.as_is("model")),
    fl.flag("--tp_size --tp --tensor_parallel_size", "ranks", "tp"),
    fl.flag("--pp_size --pp --pipeline_parallel_size", "stages", "pp"),
    fl.flag("--ep_size --ep --moe_expert_parallel_size --expert_parallel_size",
            "spreads the experts", "ep"),
    fl.switch("--enable_attention_dp", "every rank has requests and a cache of its own",
              fl.switched("dp-attention", "all")),
    fl.flag("--max_seq_len", "the longest request", "context"),
    fl.flag("--max_batch_size", "concurrent requests, with attention DP of every rank",
            "request-limit"),
    fl.flag("--max_num_tokens", "tokens of a step", "step-tokens"),
    fl.flag("--kv_cache_free_gpu_memory_fraction --free_gpu_memory_fraction",
            "share of what weights and a step leave free", fl.as_is("memory-fraction")),
    fl.flag("--kv_cache_dtype", "bytes of an entry", _plain_dtype),
    fl.flag("--kv_block_size --tokens_per_block", "tokens of a block", "block-tokens",
            written=False),
    fl.flag("--kv_cache_config", "share, block, dtype and bounds of the cache", _nested(_CACHE),
            written=False),
    fl.flag("--speculative_config", "windows of draft layers", _drafts, written=False),
    fl.flag("--sparse_attention_config", "bytes of an indexer key",
            _nested({"indexer_k_dtype": _keys}), written=False),
    fl.flag("--disaggregation_mode", "nothing: pools are the same on both sides", fl.NOTHING,
            written=False),
    fl.flag("--enable_chunked_prefill --moe_config --cache_transceiver_config", "nothing",
            fl.NOTHING, written=False),
    fl.flag("--cuda_graph_config", fl.GRAPHS, written=False),
    fl.flag("--host_cache_size", f"{fl.HOST}, which is not sized"),
)  # fmt: skip


FAMILY = Family(
    "trtllm",
    "TensorRT-LLM",
    "sizes:TrtllmEngine",
    launch=Launch(
        words=(
            ("trtllm-serve", "serve"),
            ("trtllm-serve",),
            ("tensorrt_llm.commands.serve", "serve"),
            ("dynamo.trtllm",),
        ),
        images=("tensorrt-llm", "tensorrtllm"),
        program="trtllm-serve",
        arguments="{model} --tp_size {ranks} --ep_size {ep}",
        stages="--pp_size {pp}",
        replicas="--enable_attention_dp",
        ranks_are_replicas=True,
    ),
    flags=FLAGS,
    block_tokens=128,
    log_mark="[TRT-LLM]",
)
