"""Arguments that an engine echoes at start, in any of their spellings.

``key=value``, ``'key': value``, ``--key value`` and ``--key=value``; dashes and underscores are
the same.
"""

import re
from collections.abc import Iterator

_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("model", "model_path", "model_tag"),
    "tensor_parallel": ("tensor_parallel_size", "tp_size", "tp"),
    "data_parallel": ("data_parallel_size", "dp_size", "dp"),
    "pipeline_parallel": ("pipeline_parallel_size", "pp_size", "pp"),
    "context": ("max_model_len", "max_seq_len", "context_length", "context_len"),
    "batched": ("max_num_batched_tokens", "chunked_prefill_size"),
    "requests": ("max_num_seqs", "max_running_requests"),
    "memory_fraction": ("gpu_memory_utilization", "mem_fraction_static"),
    "block": ("block_size", "page_size"),
    "cache_dtype": ("kv_cache_dtype",),
    "async": ("async_scheduling",),
    "fp4_indexer": ("use_fp4_indexer_cache", "enable_deepseek_v4_fp4_indexer"),
    "window_ratio": ("swa_full_tokens_ratio",),
    "method": ("method", "speculative_algorithm"),
    "draft_tokens": ("num_speculative_tokens", "speculative_num_draft_tokens"),
    "blocks": ("num_gpu_blocks_override",),
}
_MEANING = {name: key for key, names in _NAMES.items() for name in names}
_KEY = "|".join(name.replace("_", "[-_]") for name in sorted(_MEANING, key=len, reverse=True))
_VALUE = r"['\"]?(?P<{0}>[^\s,'\"{{}}()\[\];]+)"
_ARGUMENT = re.compile(
    rf"(?<![\w.-])(?:--)?['\"]?(?P<key>{_KEY})['\"]?\s*[=:]\s*{_VALUE.format('value')}"
    rf"|(?<![\w-])--(?P<flag>{_KEY})\s+(?!--){_VALUE.format('argument')}"
)
_LIKELY = (  # every name has one of these; most lines of a log have none
    "--", "model", "size", "max", "context", "fraction", "utilization", "dtype", "async", "fp4",
    "tokens_ratio", "method", "specul", "override", "serve ",
)  # fmt: skip
_SERVE = re.compile(r"\bvllm serve\s+(?!-)(\S+)")
_BANNER_MODEL = re.compile(r"\bmodel\s{2,}(\S+)\s*$")
_NOTHING = {"none", "null", "-1"}
_SCALE = {"k": 1000, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def find_arguments(line: str) -> Iterator[tuple[str, str]]:
    """Yield what a line says of the arguments: our name, and the value as written."""
    if not any(part in line for part in _LIKELY):
        return
    for match in _ARGUMENT.finditer(line):
        name = (match["key"] or match["flag"]).replace("-", "_")
        value = (match["value"] or match["argument"]).rstrip(".")  # the end of a sentence
        if value.lower() not in _NOTHING:
            yield _MEANING[name], value
    for pattern in (_SERVE, _BANNER_MODEL):
        if model := pattern.search(line):
            yield "model", model[1]


def whole_number(text: str | None) -> int | None:
    """``8192``, ``8_192``, ``128k`` (thousands) or ``128K`` (binary), as vLLM takes them."""
    match = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?)([kmgKMG]?)", text or "")
    if match is None:
        return None
    return int(float(match[1].replace("_", "")) * _SCALE.get(match[2], 1))
