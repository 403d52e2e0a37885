"""Start-up logs made up for tests."""

import random
from collections.abc import Sequence

from dsv4kv.engines.logs import StartupLog, parse_log

VLLM_0_26 = (
    "vLLM API server version 0.26.0",
    (
        "non-default args: {'model_tag': '/data/DeepSeek-V4-Flash', 'max_model_len': 912128, "
        "'tensor_parallel_size': 2, 'max_num_batched_tokens': 8192, "
        "'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 1}}"
    ),
    "Using FP8 indexer cache for Lightning Indexer.",
    "Available KV cache memory: 7.01 GiB",
    "GPU KV cache size: 1,009,661 tokens",
    "Maximum concurrency for 912,128 tokens per request: 1.11x",
)
"""The log of vLLM 0.26 with a draft layer: 7,236 blocks, 6,537 blocks per request."""

VLLM_0_33 = (
    (
        "Initializing a V1 LLM engine (v0.33.0) with config: "
        "model='deepseek-ai/DeepSeek-V4-Flash', "
        "speculative_config=SpeculativeConfig(method='dspark', num_spec_tokens=5), "
        "max_seq_len=33792, tensor_parallel_size=1"
    ),
    "Chunked prefill is enabled with max_num_batched_tokens=8448.",
    "GPU KV cache size: 63,859 tokens, Maximum concurrency for 33,792 tokens per request: 1.89x",
)
"""The log of vLLM 0.33 with three draft layers: 13,270 blocks, 7,022 blocks per request."""

BLOCKS_GIVEN = (
    (
        "version 0.33.0, non-default args: {'model_tag': 'deepseek-ai/DeepSeek-V4-Flash', "
        "'tensor_parallel_size': 4, 'max_model_len': 32768, 'max_num_batched_tokens': 8192}"
    ),
    "Available KV cache memory: 60.00 GiB",
    "Overriding num_gpu_blocks=64281 with num_gpu_blocks_override=5000",
    "GPU KV cache size: 24,058 tokens, Maximum concurrency for 32,768 tokens per request: 0.73x",
)

REFUSAL = (
    (
        "ValueError: To serve at least one request with the model's max seq len (30000), "
        "(6.66 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(5.44 GiB). Based on the available memory, the estimated maximum model length is 13528. "
        "Try increasing "
        "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
    ),
)
"""The refusal of vllm#44376 (vLLM 0.22)."""

WINDOWS_KEPT = (
    (
        "server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V4-Flash', tp_size=8, "
        "context_length=1048576, chunked_prefill_size=16384, swa_full_tokens_ratio=0.1, "
        "max_running_requests=256)"
    ),
    (
        "DSV4 memory calculation: bytes_per_full_token=7705.45, available_bytes=130.86 GB, "
        "c128_state_fixed=2.53 GB, full_token=17882368"
    ),
    "DSV4 pool sizes: full=17882368, swa=1788160, c4=4470592, c128=139706",
)
"""SGLang 0.5.17, which keeps the windows of whole prompts, or 0.5.19, which frees them."""

KTRANSFORMERS = (
    "--model /mnt/DeepSeek-V4-Flash --kt-weight-path /mnt/DeepSeek-V4-Flash --kt-method MXFP4",
    (
        "DSV4 memory calculation: bytes_per_full_token=15955.85, available_bytes=19.30 GB, "
        "full_token=1298688"
    ),
    "DSV4 pool sizes: full=1298688, swa=129792, c4=324672, c128=10146",
    "max_total_num_tokens=1298688, max_running_requests=256, context_len=1048576",
)
"""The numbers of KTransformers' issue 1978."""

SGLANG = (
    (
        "server_args=ServerArgs(model_path='/m/DeepSeek-V4-Flash', context_length=1048576, "
        "max_running_requests=64, chunked_prefill_size=8192, swa_full_tokens_ratio=0.1)"
    ),
    (
        "DSV4 memory calculation: unified=False, unified_fp8=False, bytes_per_full_token=7033.45, "
        "available_bytes=45.26 GB, c128_state_fixed=0.33 GB, swa_ring_fixed=0.00 GB, "
        "c4_state_fixed=0.00 GB, full_token=6859008"
    ),
)
"""The log of SGLang's build of September 2026."""


def parsed(lines: Sequence[str]) -> StartupLog:
    """The lines as a log."""
    return parse_log(lines, source="startup.log")


def of_ranks(lines: Sequence[tuple[str, str]]) -> StartupLog:
    """Lines that several processes wrote."""
    return parsed([f"({rank} pid=7) {line}" for rank, line in lines])


def prefixed(lines: Sequence[str], seed: int, rank: str) -> list[str]:
    """The lines as a terminal shows them: colours, time, level, process."""
    source = random.Random(seed)
    return [_decorate(line, source, rank) for line in lines]


def _decorate(line: str, source: random.Random, rank: str) -> str:
    clock = f"{source.randrange(24):02}:{source.randrange(60):02}:07"
    colour = f"\x1b[{source.choice(['0', '1;36', '38;5;12'])}m"
    prefixes = (
        f"({rank} pid={source.randrange(9999)}) INFO 08-07 {clock} [gpu_worker.py:41] ",
        f"{colour}({rank} pid={source.randrange(9999)})\x1b[0;0m INFO 08-07 {clock} [a.py:1] ",
        f"2026-08-07T{clock}Z stderr F ({rank} pid=3) WARNING ",
    )
    return source.choice(prefixes) + line
