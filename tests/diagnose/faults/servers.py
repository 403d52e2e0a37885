"""Commands and logs as people published them, with the faults that they have.

A text that names a file stands for it.

Flags and values are those of the threads; what has nothing to do with the cache is shortened, and
where a thread names its flags without a whole command, they are put together to one.
``engine`` is the release that the thread names, and ``gpu`` what it ran on, where the text itself
does not tell and it matters; what is ``possible`` hangs on what the text cannot tell.
"""

from dataclasses import dataclass

from tests.budget.pasted import PUBLISHED


@dataclass(frozen=True)
class Case:
    """One text: where it is from, what of it is known besides, and what is wrong with it."""

    source: str
    text: str
    engine: str = ""
    faults: tuple[str, ...] = ()
    gpu: str | None = None
    possible: tuple[str, ...] = ()


def published(source: str, part: str = "") -> str:
    """A command of the tests of ``budget --command``."""
    return next(each.text for each in PUBLISHED if each.kind == source and part in each.text)


def died(*lines: str) -> str:
    """A log that ends with an error."""
    found = ("Traceback (most recent call last):", *lines)
    return "".join(f"(EngineCore pid=9) ERROR 07-10 09:12:44 [core.py:1] {one}\n" for one in found)


WINDOWS, DRAFTS = "vllm-windows-flush-prefixes", "vllm-drafts-no-hits"
EARLY = "vllm-async-drafts-free-windows"
HELD, LOGITS = "sglang-windows-held", "sglang-indexer-unbounded"
FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"
OFFLOAD = '{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}'
SPARK = '{"method":"dspark","num_speculative_tokens":7}'
MTP = '{"method":"mtp","num_speculative_tokens":1}'
HICACHE = "--enable-hierarchical-cache"
FAULTY = (
    # the commands of their time, with the releases of their time
    Case("vllm#40778", published("vllm#40778", "data-parallel"), "vllm:0.20", (WINDOWS,)),
    Case("vllm#41834", published("vllm#41834"), "vllm:0.21", (WINDOWS, DRAFTS)),
    Case("ds4-sm120-harness", published("ds4-sm120-harness, README"), "vllm:0.22.1",
         (WINDOWS, DRAFTS, EARLY)),
    Case("vllm#51771", f"vllm serve {FLASH} --enable-prefix-caching -tp 8 "
         f"--speculative-config '{SPARK}'", "vllm:0.22", (DRAFTS, WINDOWS)),
    Case("vllm-ascend#11107: before the fix", "vllm serve /nas/DeepSeek-V4-Flash-HW-W8A8 "
         "--max_model_len 1048576 --max-num-batched-tokens 10240 --max-num-seqs 32 "
         "--data-parallel-size 2 --tensor-parallel-size 8 --enable-expert-parallel "
         f"--tokenizer-mode deepseek_v4 --quantization ascend --speculative-config '{MTP}'",
         "vllm:0.22", (DRAFTS, WINDOWS, EARLY, "vllm-large-steps-reserve")),
    # offloading
    Case("vllm#43093", f"""vllm serve {FLASH} \\
  --block-size 256 \\
  --kv-cache-dtype fp8 \\
  --no-disable-hybrid-kv-cache-manager \\
  --kv-transfer-config '{{"kv_connector":"OffloadingConnector","kv_role":"kv_both","""
         """"kv_connector_extra_config":{"block_size":256}}'""",
         "vllm:0.21.0", ("vllm-offload-start-crash", WINDOWS)),
    Case("vllm#53607", f"vllm serve {FLASH} --kv-transfer-config '{OFFLOAD[:-1]},"
         '"kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","secondary_tiers":'
         """[{"type":"fs_python","root_dir":"/kv"}]}}'""",
         "vllm:0.27.1", ("vllm-offload-files-crash",)),
    Case("vllm#52735, vllm#52771", "vllm serve Qwen/Qwen3.8-27B --kv-cache-dtype fp8 "
         f"--kv-transfer-config '{OFFLOAD}' --speculative-config '{MTP}'",
         "vllm:0.28", ("vllm-offload-drafts-never-load",)),
    Case("vllm#46971", "vllm serve nvidia/GLM-5.2-NVFP4 -tp 4 -dcp 4 "
         f"--kv-transfer-config '{OFFLOAD}' --speculative-config '{MTP}'",
         "vllm:0.23.1", ("vllm-offload-drafts-never-load",)),
    Case("vllm#54914", """docker run --gpus all vllm/vllm-openai:v0.28.0 /model/DeepSeek-V4-Pro \\
  --tensor-parallel-size 8 --data-parallel-size 3 --max-model-len 1048576 \\
  --gpu-memory-utilization 0.85 --max-num-seqs 16 --enable-prefix-caching --kv-cache-dtype fp8 \\
  --speculative-config '{"method":"dspark","num_speculative_tokens":7}' \\
  --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",
    "kv_connector_extra_config":{"cpu_bytes_to_use":549755813888,"blocks_per_chunk":4}}'
""", "", ("vllm-offload-block-not-found",)),
    Case("vllm#56396: by the variable", "docker run --gpus all -e VLLM_USE_SIMPLE_KV_OFFLOAD=1 "
         "vllm/vllm-openai:deepseekv41-flash-0909 deepseek-ai/DeepSeek-V4.1-Flash -tp 8 "
         "--kv-offloading-size 100", "", ("vllm-v41-simple-offload-crash",)),
    Case("vllm#57661", "vllm serve deepseek-ai/DeepSeek-V4.1-Flash -tp 4 --kv-transfer-config "
         """'{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'""",
         "vllm:0.33", ("vllm-v41-nixl-truncates-states",)),
    Case("vllm#56700", "vllm serve deepseek-ai/DeepSeek-V4.1-Flash -tp 4 "
         """--engram-config '{"cpu_offload": false}'""",
         "vllm:0.33", ("vllm-v41-engram-on-gpu",)),
    Case("vllm#43468", f"vllm serve {FLASH} --kv-transfer-config '{OFFLOAD}' "
         """--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq"}'""",
         "vllm:0.30", ("vllm-offload-events-empty",)),
    Case("vllm#47728", f"vllm serve {FLASH} -tp 8 --block-size 256 "
         f"--speculative-config '{MTP}'", "vllm:0.23", (EARLY,)),
    Case("sglang#35811", """sglang serve --trust-remote-code \\
  --model-path /models/deepseek-ai/DeepSeek-V4-Flash-0731 --tp 2 \\
  --moe-runner-backend flashinfer_mxfp4 --speculative-algorithm DSPARK \\
  --chunked-prefill-size 16384 --max-prefill-tokens 16384 --cuda-graph-max-bs-prefill 8192 \\
  --max-running-requests 256 --swa-full-tokens-ratio 0.1 --mem-fraction-static 0.75 \\
  --enable-hierarchical-cache
""", "sglang:0.5.17", ("sglang-hicache-long-sessions", "sglang-prefill-graphs-memory", HELD)),
    Case("vllm-ascend#16156", """vllm serve /models/DeepSeek-V4-Flash-0731-w8a8 \\
  --max-model-len 1048576 --max-num-batched-tokens 10240 --max-num-seqs 64 \\
  --data-parallel-size 4 --tensor-parallel-size 4 --tokenizer-mode deepseek_v4 \\
  --quantization ascend --block-size 128 --async-scheduling \\
  --speculative-config '{"method":"dspark","num_speculative_tokens":1,"enforce_eager":true}'
""", "vllm:0.26", ("vllm-ascend-large-blocks", "vllm-ascend-short-prompts",
                   "vllm-large-steps-reserve")),
    # sizes, other machines, other tiers
    Case("InferenceX#2757", f"vllm serve {PRO} -tp 8 --max-num-batched-tokens 32768 "
         "--no-enable-prefix-caching --block-size 256", "vllm:0.28",
         ("vllm-large-steps-reserve",)),
    Case("vllm#54567", "vllm serve /model --served-model-name deepseek-v4-flash "
         "--kv-cache-dtype fp8 --kv-cache-memory-bytes 13958643712 --max-model-len 524288 "
         "--max-num-seqs 4 --max-num-batched-tokens 4096 --attention-backend THOR_MLA_SPARSE_DSV4",
         "vllm:0.28", ("vllm-thor-no-hits",)),
    Case("vllm#44376", f"vllm serve {FLASH} --tensor-parallel-size 8 --pipeline-parallel-size 2 "
         "--kv-transfer-config "
         """'{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}'""",
         "vllm:0.22", ("vllm-mooncake-store-check", WINDOWS)),
    Case("vllm#41125", "docker run --gpus all --ipc=host -p 8000:8000 "
         f"vllm/vllm-openai:deepseekv4-cu129 {FLASH} --kv-cache-dtype fp8 -tp 4",
         "vllm:0.25", ("vllm-hang-beyond-64k",)),
    Case("LMCache#2881", """VLLM_USE_FLASHINFER_MOE_FP4=1 \\
vllm serve nvidia/DeepSeek-V3.2-NVFP4 --tensor-parallel-size 8 \\
    --quantization modelopt_fp4 --max-model-len 32768 --enable-prefix-caching \\
    --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
""", "vllm:0.18", ("vllm-lmcache-v32-shape",)),
    Case("LMCache#3156", "lmcache server --port 57771 --chunk-size 4096 --l1-size-gb 1200\n"
         f"vllm serve {PRO} -tp 8 --kv-transfer-config "
         """'{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'""",
         "vllm:0.26", ("vllm-lmcache-object-groups",)),
    Case("LMCache#3171", """lmcache server --host 127.0.0.1 --port 57771 \\
    --chunk-size 512 --hash-algorithm blake3 --l1-size-gb 1200
vllm serve /data1/public/models/DeepSeek-V4-Flash --served-model-name deepseek-v4-flash \\
  --kv-cache-dtype fp8 --block-size 256 --enable-expert-parallel \\
  --tensor-parallel-size 8 --tokenizer-mode deepseek_v4 \\
  --kv-transfer-config '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'
""", "vllm:0.20.1", ("vllm-lmcache-object-groups", "vllm-lmcache-small-chunks", WINDOWS)),
    Case("vllm#39359", f"vllm serve {FLASH} --speculative-config '"
         '{"method":"mtp","num_speculative_tokens":3,"rejection_sample_method":"synthetic",'
         """"synthetic_acceptance_length":2.6}'""",
         "vllm:0.33", ("vllm-synthetic-acceptance",)),
    # routers and events
    Case("dynamo#12319", "python3 -m dynamo.frontend --router-mode kv --router-kv-events &\n"
         f"python3 -m dynamo.vllm --model {PRO} -tp 8 --enable-prefix-caching",
         "vllm:0.26", ("vllm-router-without-events",)),
    Case("dynamo#11505", "python3 -m dynamo.frontend --router-mode=kv &\n"
         f"python3 -m dynamo.sglang --model-path {FLASH} --tp 4 --page-size 256",
         "sglang:0.5.23", ("sglang-router-without-events",)),
    Case("dynamo#4249", "python3 -m dynamo.vllm --model deepseek-ai/DeepSeek-V4-Flash "
         """--kv-events-config '{"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:20080"}'""",
         "vllm:0.33", ("vllm-events-not-enabled",)),
    Case("dynamo#11648", f"python3 -m dynamo.sglang --model-path {FLASH} "
         """--kv-events-config '{"enable_kv_cache_events":true}'""",
         "sglang:0.5.23", ("sglang-events-not-enabled",)),
    Case("vllm#54227", f"""vllm serve {FLASH} &
for c in 4 8 16; do
  vllm bench serve --model {FLASH} --dataset-name random --random-input-len 16384 \\
    --max-concurrency $c --num-prompts 64
done
""", "vllm:0.33", ("vllm-sweep-same-prompts",)),
    Case("InferenceX#1127", """vllm serve deepseek-ai/DeepSeek-V4-Pro --host 0.0.0.0 -tp 8 \\
--trust-remote-code --kv-cache-dtype fp8 --block-size 256 \\
--attention_config.use_fp4_indexer_cache=True --tokenizer-mode deepseek_v4 &
for CONC in 4 8 16 32; do
python3 benchmark_serving.py --dataset-name random --random-range-ratio 0.8 --max-concurrency $CONC
done
""", "vllm:0.20", ("vllm-sweep-same-prompts", WINDOWS)),
    # SGLang
    Case("sglang#33656", "docker run --gpus all lmsysorg/sglang:v0.5.16 sglang serve "
         f"--model-path {FLASH} --tp 4 {HICACHE} --mem-fraction-static 0.8",
         "", ("sglang-hicache-window-position", HELD)),
    Case("sglang#30532", "python3 -m sglang.launch_server --model-path /m/DeepSeek-V4-Flash-FP8 "
         f"--tp 8 --speculative-algorithm EAGLE --speculative-num-steps 3 {HICACHE} "
         "--hicache-write-policy write_through",
         "sglang:0.5.14", ("sglang-hicache-drafts-deadlock", HELD)),
    Case("sglang#35201", "docker run --gpus all lmsysorg/sglang:v0.5.17-cu129 python3 -m "
         "sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Flash-0731 --tp 4 "
         "--mem-fraction-static 0.9 --chunked-prefill-size 4096 --moe-runner-backend marlin "
         "--context-length 1000000", "", (LOGITS, HELD)),
    Case("SGLang cookbook: B200, Pro", published("SGLang cookbook: B200, Pro, low latency"),
         "sglang:0.5.15", (LOGITS, HELD)),
    Case("sglang#34822", published("sglang#34822"), "sglang:0.5.17",
         (LOGITS, HELD, "sglang-dp-lockstep")),
    Case("sglang#23686", "SGLANG_ENABLE_THINKING=1 sglang serve --trust-remote-code --model-path "
         f"{PRO} --tp 8 --cuda-graph-max-bs 256 --max-running-requests 256 --enable-metrics "
         "--mem-fraction-static 0.8 --moe-runner-backend marlin --speculative-algo EAGLE "
         "--speculative-num-steps 3 --speculative-num-draft-tokens 4",
         "sglang:0.5.12", ("sglang-cache-gauge-zero", HELD)),
    Case("sglang#39187", "sglang serve --model-path deepseek-ai/DeepSeek-V4.1-Flash --tp 4 --ep 4 "
         "--chunked-prefill-size 16384 --enable-encoder-swa-bounded-replay "
         "--enable-decoder-swa-bounded-replay --mem-fraction-static 0.80",
         "sglang:0.5.22", ("sglang-v41-indexer-unbounded",)),
    Case("sglang#38957", "sglang serve --model-path deepseek-ai/DeepSeek-V4.1-Flash --tp 4 --ep 4 "
         f"--enable-encoder-swa-bounded-replay {HICACHE} --chunked-prefill-size 4096",
         "sglang:0.5.22", ("sglang-v41-hicache-replay",)),
    Case("InferenceX#1709", f"sglang serve --model-path {PRO} --tp 8 {HICACHE} --hicache-size 100",
         "sglang:0.5.23", ("sglang-hicache-size-refused",)),
    Case("sglang#38844", f"sglang serve --model-path {FLASH} --tp 8 {HICACHE} "
         "--disable-radix-cache", "sglang:0.5.23", ("sglang-hicache-without-radix",)),
    Case("sglang#34562", "SGLANG_HACK_FLASHMLA_BACKEND=unified_kv_triton sglang serve "
         f"--model-path {FLASH} --tp 8 {HICACHE} --hicache-write-policy write_through",
         "sglang:0.5.23", ("sglang-unified-kv-inexact",)),
    Case("sglang#32595", f"SGLANG_SIMULATE_ACC_LEN=4 sglang serve --model-path {FLASH} --tp 4 "
         "--speculative-algorithm DSPARK", "sglang:0.5.23", ("sglang-synthetic-acceptance",)),
    Case("InferenceX#3284", "docker run --gpus all lmsysorg/sglang:v0.5.20 sglang serve "
         "--model-path deepseek-ai/DeepSeek-V4.1-Flash --tp 8 --ep 8 "
         "--speculative-algorithm DSPARK", "", ("sglang-v41-unknown",)),
    Case("sglang#33397, a comment", "sglang serve --model-path "
         "deepseek-ai/DeepSeek-V4-Flash-0731 --tp 8 --ep 8 --enable-dp-attention --dp 8 "
         "--enable-dp-lm-head --kv-cache-dtype fp8_e4m3 --context-length 524288 "
         "--chunked-prefill-size 65536 --max-running-requests 512", "sglang:0.5.16",
         ("sglang-hopper-dp-corruption", "sglang-dp-lockstep", HELD), "h100"),
    # logs
    Case("vllm#40821, its log", "tests/diagnose/faults/logs/vllm_40821.log", "",
         (WINDOWS, "vllm-large-steps-reserve")),
    Case("sglang#23602, its log", "tests/diagnose/faults/logs/sglang_23602.log", "",
         (HELD, LOGITS), possible=(HELD,)),
    # starts that fail for another reason than memory, by the errors of the threads
    Case("vllm#48286", died("ValueError: No common block size for 16 between kv_manager=[16] and "
                            "backend=[64]"), "vllm:0.24", ("vllm-no-common-block-size",)),
    Case("vllm#48286, as Python ends", "Traceback (most recent call last):\n"
         '  File "/opt/vllm/v1/worker/utils.py", line 210, in select_common_block_size\n'
         "ValueError: No common block size for 256 between kv_manager=[256] and backend=[64]\n",
         "", ("vllm-no-common-block-size",)),
    Case("vllm#49804", died("RuntimeError: flashinfer-cubin version (0.6.13) does not match "
                            "flashinfer version (0.6.14)."),
         "vllm:0.26", ("vllm-flashinfer-packages-differ",)),
    Case("vllm#48054", died("TypeError: trtllm_batch_decode_sparse_mla_dsv4() got an unexpected "
                            "keyword argument 'swa_topk_lens'"),
         "vllm:0.24", ("vllm-flashinfer-too-old",)),
    Case("vllm#50774", died("AssertionError: swa_metadata missing tile_sched entry for "
                            "compress_ratio=1"), "vllm:0.26", ("vllm-flashmla-on-sm120",)),
    Case("vllm#47174", died("AssertionError: DeepseekV4 fp8_ds_mla layout only supports fp8 "
                            "kv-cache, got auto"), "vllm:0.24", ("vllm-cache-dtype-not-fp8",)),
    Case("vllm#52457", died("Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:164 'an "
                            "illegal memory access was encountered'"),
         "vllm:0.27.1", ("vllm-custom-all-reduce",)),
    Case("sglang#25118", died("    assert self.store_dtype == torch.uint8", "AssertionError"),
         "sglang:0.5.23", ("sglang-store-dtype",)),
    Case("vllm#50774, by docker compose", "vllm-1  | (APIServer pid=1) INFO 08-04 09:59:00 [a:1] "
         "vLLM starts\nvllm-1  | (Worker pid=9) ERROR 08-04 10:00:00 [core.py:1] AssertionError: "
         "swa_metadata missing tile_sched entry for compress_ratio=4\n",
         "", ("vllm-flashmla-on-sm120",)),
    Case("vllm#54233, by torchrun", "[rank0]: Traceback (most recent call last):\n[rank0]: "
         "AssertionError: DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16\n",
         "", ("vllm-cache-dtype-not-fp8",)),
    Case("sglang#24783, by Kubernetes", "2026-05-09T10:00:00.123Z stdout F     assert "
         "self.store_dtype == torch.uint8\n2026-05-09T10:00:00.124Z stdout F AssertionError\n",
         "", ("sglang-store-dtype", "sglang-v41-unknown"), possible=("sglang-v41-unknown",)),
    Case("sglang#33194", f"sglang serve --model-path {FLASH} --tp 8 --kv-cache-dtype bfloat16",
         "sglang:0.5.23", ("sglang-bf16-cache",)),
    Case("sglang#11242", died("Exception: sgl-kernel is installed with version 0.3.12, which is "
                              "less than the minimum required version 0.3.14."),
         "sglang:0.5.23", ("sglang-kernel-too-old",)),
)  # fmt: skip
"""Faulty commands and logs; all of their faults, and no others, are named."""

_TODAY = ("vllm:0.33", "sglang:0.5.23")
_LEFT = {"sglang#34822"}  # it has a fault today, too
HEALTHY = (
    *(
        Case(each.kind, each.text, _TODAY["sglang" in each.text and "vllm" not in each.text])
        for each in PUBLISHED
        if "trtllm" not in each.text
        and "no launch command" not in each.refused
        and each.kind not in _LEFT
    ),
    Case("vllm#41168", """VLLM_ENGINE_READY_TIMEOUT_S=3600 python3 \\
  -m vllm.entrypoints.cli.main \\
  serve deepseek-ai/DeepSeek-V4-Pro --max-num-batched-tokens 2048 --max-model-len 2048 \\
  --no-enable-prefix-caching --tensor-parallel-size 8 --kv-cache-dtype fp8 --block-size 256 \\
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'
""", "vllm:0.21"),
    Case("sglang#33344", """sglang serve --mem-fraction-static 0.8 --tp 8 \\
  --model-path deepseek-ai/DeepSeek-V4-Flash-0731 --moe-runner-backend marlin \\
  --speculative-draft-model-path AQ-MedAI/DeepSeek-V4-Flash-0731-eagle3 \\
  --speculative-algorithm EAGLE3 --speculative-num-steps 3
""", "sglang:0.5.23"),

    Case("vllm-ascend#13627: what solved it", """vllm serve "DeepSeek-V4-Flash-0731-w8a8" \\
 --data-parallel-size 1 --tensor-parallel-size 8 --quantization ascend --enable-expert-parallel \\
 --max-model-len 500000 --max-num-batched-tokens 8192 --max-num-seqs 128 --block-size 32 \\
 --enable-prefix-caching --gpu-memory-utilization 0.95 --tokenizer-mode deepseek_v4
""", "vllm:0.25.1"),
    Case("vllm#43142", f"vllm serve {FLASH} --kv-cache-dtype fp8 --block-size 256 -ep -tp 8 "
         "--no-disable-hybrid-kv-cache-manager --no-enable-prefix-caching "
         "--kv-offloading-size 100",
         "vllm:0.22"),
    Case("recipes#727", f"vllm serve {FLASH} -tp 4 --kv-cache-dtype fp8 --block-size 256 "
         f"--kv-transfer-config '{OFFLOAD}'", "vllm:0.26.1"),
    Case("sglang#38844, of the cookbook", "sglang serve --tp 4 --model-path "
         f"deepseek-ai/DeepSeek-V4.1-Flash {HICACHE} --hicache-ratio 2 --hicache-size 0 "
         "--hicache-write-policy write_through",
         "sglang:0.5.23"),
    Case("dynamo: deepseek-v4-pro recipe", "python3 -m dynamo.frontend --router-mode kv &\n"
         f"python3 -m dynamo.vllm --model {PRO} -tp 8 "
         """--kv-events-config '{"enable_kv_cache_events":true}'""", "vllm:0.26"),
    Case("a guide to V4.1 with SGLang's preview", "docker run --rm --gpus all --shm-size 32g "
         "lmsysorg/sglang:dev-dsv41 sglang serve --model-path deepseek-ai/DeepSeek-V4.1-Flash "
         "--trust-remote-code --tp 8 --ep-size 8 --mem-fraction-static 0.8 --attention-backend "
         "dsv4 --enable-decoder-swa-bounded-replay --host 0.0.0.0 --port 30000"),
    Case("sglang: --dp with a prefill delayer", f"sglang serve --model-path {FLASH} --tp 8 --dp 8 "
         "--enable-dp-attention --enable-prefill-delayer --prefill-delayer-max-delay-ms 5000",
         "sglang:0.5.23"),
    Case("docs/server.compose.yaml", "docs/server.compose.yaml", "vllm:0.33"),
)  # fmt: skip
"""Commands in which nothing of the table is wrong, with the newest releases or the thread's."""
