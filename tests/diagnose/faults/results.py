"""Results of benchmarks, by the keys of SGLang and vLLM, with numbers that were published."""

from typing import Any

Run = dict[str, Any]

VLLM: Run = {
    "date": "20261101-120000", "backend": "vllm", "model_id": "Qwen/Qwen3-8B", "num_prompts": 200,
    "request_rate": "inf", "max_concurrency": 16, "duration": 100.0, "completed": 200,
    "failed": 0, "total_input_tokens": 204_800, "total_output_tokens": 25_600,
    "median_ttft_ms": 180.0, "median_tpot_ms": 9.0,
}  # fmt: skip
SGLANG: Run = {
    "backend": "sglang", "dataset_name": "random", "request_rate": "inf", "max_concurrency": 16,
    "random_input_len": 8192, "random_output_len": 1024, "random_range_ratio": 0.0,
    "duration": 60.0, "completed": 160, "total_input_tokens": 660_000,
    "total_output_tokens": 82_000, "median_ttft_ms": 900.0, "median_tpot_ms": 12.0,
}  # fmt: skip
RANDOM = VLLM | {"dataset_name": "random"}

COOKBOOK = (  # cell, concurrency, prompts, mean tokens in and out, P50 of TTFT and TPOT in ms
    ("b200.flash.fp4.low-latency.c1", 1, 32, 4311, 520, 227.0, 2.88),
    ("b300.flash.fp4.high-throughput.c1024", 1024, 2048, 4156, 504, 89642.0, 61.18),
    ("b300.pro.fp4.balanced.c256", 256, 512, 4144, 514, 3256.0, 99.31),
    ("b300.pro.fp4.high-throughput.c4096", 4096, 4096, 4132, 510, 481157.0, 42.66),
    ("gb300.flash.fp4.low-latency.c16", 16, 32, 4311, 520, 557.0, 7.02),
    ("h200.flash.fp8.high-throughput.c4096", 4096, 4096, 4132, 510, 574457.0, 147.07),
    ("h200.pro.fp4.balanced.c64", 64, 128, 3929, 516, 45971.0, 29.03),
    ("h100.flash.fp4.balanced.c256", 256, 512, 4144, 514, 36270.0, 47.12),
    ("h100.flash.fp4.high-throughput.c1024", 1024, 2048, 4156, 504, 212091.0, 67.32),
)  # fmt: skip
"""SGLang's published points of DeepSeek-V4 (sglang#31363, SGLang 0.5.15)."""

BURSTS = {"b300.pro.fp4.high-throughput.c4096", "h200.flash.fp8.high-throughput.c4096"}
"""Of them those with fewer than two prompts for each that may run at once."""


def cookbook(
    concurrency: float, prompts: float, tokens: float, out: float, ttft: float, tpot: float
) -> Run:
    """A point as SGLang writes it."""
    totals = {"total_input_tokens": prompts * tokens, "total_output_tokens": prompts * out}
    medians = {"median_ttft_ms": ttft, "median_tpot_ms": tpot}
    return SGLANG | totals | medians | {"max_concurrency": concurrency, "completed": prompts}


FAULTY_RUNS: dict[str, tuple[list[Run], set[str]]] = {
    "vllm#54227: the same prompts, 49 times sooner": (
        [RANDOM | {"median_ttft_ms": 4900.0}, RANDOM | {"median_ttft_ms": 100.0}],
        {"bench-warm-server"},
    ),
    "sglang#31363: a second run without --flush-cache": (
        [SGLANG, SGLANG | {"median_ttft_ms": 240.0, "duration": 31.0}], {"bench-warm-server"},
    ),
    "vllm#52884: 1,024 tokens within 3 ms": (
        [RANDOM | {"median_ttft_ms": 3.0}], {"bench-prompts-cached"},
    ),
    "llama.cpp#27711: drafts of random tokens, SGLang": (
        [SGLANG | {"accept_length": 2.73}], {"bench-drafts-of-random-tokens"},
    ),
    "llama.cpp#27711: drafts of random tokens, vLLM": (
        [RANDOM | {"spec_decode_acceptance_length": 1.9}], {"bench-drafts-of-random-tokens"},
    ),
    "evalscope#1641: one burst": ([RANDOM | {"max_concurrency": 200}], {"bench-burst-measured"}),
    "sglang#36179: answers of one length": (
        [VLLM | {"dataset_name": "sharegpt", "output_lens": [600] * 200}],
        {"bench-answers-forced"},
    ),
    "InferenceX#357: refused requests": (
        [RANDOM | {"completed": 180, "failed": 20}], {"bench-requests-failed"},
    ),
    "vllm#11167: 97 of 100": (
        [VLLM | {"num_prompts": 100, "completed": 97, "dataset_name": "sharegpt"}],
        {"bench-requests-failed"},
    ),
    "sglang#40566: Flash on SM89, 16 at once": (
        [SGLANG | {
            "dataset_name": "custom", "random_input_len": None, "completed": 32,
            "duration": 561.73, "total_input_tokens": 112_000, "total_output_tokens": 48_000,
            "median_ttft_ms": 18_342.09, "median_tpot_ms": 171.92,
        }],
        {"bench-slow-decode", "bench-slow-prompts"},
    ),
    "means alone, 8 at once": (
        [VLLM | {
            "max_concurrency": 8, "completed": 32, "num_prompts": 32,
            "total_input_tokens": 131_072, "median_ttft_ms": None, "median_tpot_ms": None,
            "mean_ttft_ms": 54_000.0, "mean_tpot_ms": 9.0,
        }],
        {"bench-slow-prompts"},
    ),
    "263 ms a token, 8 at once": (
        [VLLM | {"max_concurrency": 8, "median_tpot_ms": 263.0}], {"bench-slow-decode"},
    ),
} | {
    f"sglang#31363: {cell}": ([cookbook(*point)], {"bench-burst-measured"})
    for cell, *point in COOKBOOK
    if cell in BURSTS
}  # fmt: skip

HEALTHY_RUNS: list[tuple[str, Run]] = [
    *((f"sglang#31363: {c}", cookbook(*point)) for c, *point in COOKBOOK if c not in BURSTS),
    ("vllm#26478: its report", VLLM | {
        "dataset_name": "hf", "num_prompts": 1000, "completed": 1000, "max_concurrency": None,
        "duration": 23.73, "total_input_tokens": 79_807, "total_output_tokens": 255_726,
        "median_ttft_ms": 6866.08,
    }),
    ("vllm#52884: cold", RANDOM),
    ("vllm#26943: --ignore-eos, --save-detailed",
     VLLM | {"input_lens": [1024, 1023] * 100, "output_lens": [128] * 200}),
    ("vllm#26943: after a warm-up", RANDOM | {"num_prompts": 160, "completed": 160}),
    ("eight prompts of 128K, one after the other",
     VLLM | {"max_concurrency": 8, "total_input_tokens": 200 * 131_072, "median_ttft_ms": 4e4}),
]  # fmt: skip
