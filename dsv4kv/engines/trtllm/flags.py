"""Flags of TensorRT-LLM. Source: ``trtllm-serve``."""

from dsv4kv.engines.flags import Meaning, Texts, as_is, counted, flag
from dsv4kv.errors import ConfigError


def _plain_dtype(text: str) -> Texts:
    """TensorRT-LLM's, which has no formats by GPU and backend."""
    if text.startswith("fp8") or text == "auto":
        return {}
    if text not in ("bfloat16", "bf16"):
        raise ConfigError(f"{text!r} is no cache dtype of DeepSeek-V4: fp8, auto or bfloat16.")
    return {"main-format": "bf16", "window-format": "bf16"}


FLAGS = (
    flag("--model", "the model", as_is("model")),
    flag("--tp_size --tp --tensor_parallel_size", "ranks", counted("tp")),
    flag("--pp_size --pp --pipeline_parallel_size", "stages", counted("pp")),
    flag("--ep_size --ep --moe_expert_parallel_size", "spreads the experts", counted("ep")),
    flag("--max_seq_len", "the longest request", counted("context")),
    flag("--max_batch_size", "requests at once", counted("request-limit")),
    flag("--max_num_tokens", "tokens of a step", counted("step-tokens")),
    flag(
        "--kv_cache_free_gpu_memory_fraction --free_gpu_memory_fraction",
        "share of a GPU, here of all its memory, there of what is free after the weights",
        as_is("memory-fraction"),
    ),
    flag("--kv_cache_dtype", "bytes of an entry", Meaning(_plain_dtype)),
    flag("--extra_llm_api_options --config", "a file of settings, which is not read"),
)  # fmt: skip
"""In the order in which they are listed."""
