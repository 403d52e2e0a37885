"""Launch commands of DeepSeek-V4 as people published them, with where, broken ones among them.

Flags and values are theirs, layout of lines too where it matters; what has nothing to do with
sizes is shortened here and there.
"""

from functools import partial

from tests.budget.pasted import Pasted

PARSERS = "--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice"

Published = partial(Pasted, gpu="h200", uncounted=())
LAUNCHES = (
    Published(
        "huggingface.co/deepseek-ai/DeepSeek-V4-Pro-0813, README",
        """vllm serve deepseek-ai/DeepSeek-V4-Pro-0813 \\
  --trust-remote-code --kv-cache-dtype fp8 --block-size 256 \\
  --data-parallel-size 4 --enable-expert-parallel \\
  --moe-backend deep_gemm_mega_moe \\
  --attention-config '{"use_fp4_indexer_cache": true}' \\
  --speculative-config '{"method":"dspark","num_speculative_tokens":7}'
""",
        gpu="b300",
        texts={"model": "v4-pro", "dp": "4", "tp": "1", "indexer-format": "mxfp4",
               "draft-layers": "3", "draft-tokens": "7", "block-tokens": "256"},
    ),
    Published(
        "vllm#40778",
        f"""VLLM_LOGGING_LEVEL=DEBUG vllm serve /data/pretrained/DeepSeek-V4-Flash \\
--served-model-name DeepSeek-V4-Flash \\
--trust-remote-code --kv-cache-dtype fp8 --block-size 256 --enable-expert-parallel \\
--data-parallel-size 8 --gpu-memory-utilization 0.85 \\
--compilation-config '{{"cudagraph_mode":"FULL_AND_PIECEWISE", "custom_ops":["all"]}}' \\
--attention_config.use_fp4_indexer_cache=True \\
{PARSERS} --reasoning-parser deepseek_v4""",
        gpu="b200",
        texts={"model": "v4-flash", "dp": "8", "memory-fraction": "0.85",
               "indexer-format": "mxfp4"},
    ),
    Published(
        "vllm#40778",
        f"""PS C:\\Users\\w> docker run --gpus all --privileged --ipc=host -p 8005:8005 \
-e CUDA_DEVICE_ORDER=PCI_BUS_ID -e CUDA_VISIBLE_DEVICES=0,1 -v I:\\AI-Chat\\models:/models \
vllm/vllm-openai:deepseekv4-cu130 /models/DeepSeek-V4-Flash --trust-remote-code \
--kv-cache-dtype fp8 --block-size 256 --enable-expert-parallel --tensor-parallel-size 2 \
--attention_config.use_fp4_indexer_cache=True {PARSERS} --host 0.0.0.0 \
--gpu-memory-utilization 0.95 --async-scheduling --enable-prefix-caching --max-num-seqs 2""",
        gpu="b200",
        texts={"model": "v4-flash", "tp": "2", "overlap": "2", "request-limit": "2",
         "memory-fraction": "0.95"},
    ),
    Published(
        "vllm#51041",
        """services:
  vllm:
    image: registry/ddn-k8s/docker.io/vllm/vllm-openai:v0.26.0-cu129
    container_name: vllm-server-dsv4f-0731
    ports:
      - "8526:8526"
    ipc: host
    volumes:
      - /hdd2/models/DeepSeek-V4-Flash-0731:/model
    command: >
      /model
      --trust-remote-code
      --kv-cache-dtype fp8
      --block-size 256
      --enable-expert-parallel
      --tensor-parallel-size 4
      --max-num-batched-tokens 8192
      --gpu-memory-utilization 0.9
      --max-num-seqs 32
      --tokenizer-mode deepseek_v4
      --speculative-config '{"method":"dspark","num_speculative_tokens":7}'
""",
        gpu="h20",
        options={"model": "v4-flash"},
        texts={"engine": "vllm:0.26.0", "tp": "4", "step-tokens": "8192", "draft-layers": "3"},
    ),
    Published(
        "vllm-project/recipes#493",
        """vllm serve deepseek-ai/DeepSeek-V4-Flash \\
    --host 0.0.0.0 --port 8888 \\
    --tensor-parallel-size 1 --pipeline-parallel-size 1 \\
    --kv-cache-dtype fp8 --trust-remote-code --block-size 256 \\
    --enable-prefix-caching --gpu-memory-utilization 0.92 \\
    --attention_config.use_fp4_indexer_cache True \\
    --no-disable-hybrid-kv-cache-manager --disable-uvicorn-access-log \\
    --max-cudagraph-capture-size 128 \\
    --prefix-cache-retention-interval auto \\
    --speculative-config '{"method":"mtp","num_speculative_tokens":3}'""",
        gpu="gb300",
        texts={"tp": "1", "pp": "1", "indexer-format": "mxfp4", "draft-layers": "1",
         "draft-tokens": "3"},
    ),
    Published(
        "docs.vllm.ai: adaptive verification",
        """```bash
vllm serve deepseek-ai/DeepSeek-V4-Flash-DSpark \\
  --tokenizer-mode deepseek_v4 --trust-remote-code \\
  --speculative-config '{
    "method": "dspark",
    "model": "deepseek-ai/DeepSeek-V4-Flash-DSpark",
    "num_speculative_tokens": 7,
    "enable_adaptive_verification": true
  }'
```""",
        gpu="b300",
        texts={"model": "v4-flash", "draft-layers": "3", "draft-tokens": "7", "tp": "1"},
    ),
    Published(
        "jasl/vllm ds4-sm120, benchmark notes",
        f"""vllm serve deepseek-ai/DeepSeek-V4-Flash \\
  --trust-remote-code \\
  --kv-cache-dtype fp8 --block-size 256 \\
  --max-model-len 65536 --tensor-parallel-size 2 \\
  --no-enable-flashinfer-autotune {PARSERS} \\
  --enable-expert-parallel \\
  --gpu-memory-utilization 0.95 \\
  --speculative_config '{{"method":"mtp","num_speculative_tokens":2}}'""",
        gpu="rtx-pro-6000",
        texts={"context": "65536", "tp": "2", "draft-layers": "1", "draft-tokens": "2"},
    ),
    Published(
        "ds4-sm120-harness, README",
        """export VLLM_ENGINE_READY_TIMEOUT_S=3600

vllm serve deepseek-ai/DeepSeek-V4-Flash \\
  --trust-remote-code \\
  --kv-cache-dtype fp8 \\
  --block-size 256 \\
  --tensor-parallel-size 4 \\
  --attention_config.use_fp4_indexer_cache=True \\
  --speculative_config '{"method":"mtp","num_speculative_tokens":2}'
""",
        gpu="b200",
        texts={"tp": "4", "indexer-format": "mxfp4", "draft-tokens": "2"},
    ),
    Published(
        "vllm#48660",
        "`vllm serve deepseek-ai/DeepSeek-V4-Flash   -tp 4    -ep   --attention-backend "
        "FLASHINFER_MLA_SPARSE_DSV4   --kv-cache-dtype fp8 --port 8003`",
        gpu="b200",
        texts={
            "tp": "4",
            "model": "v4-flash",
            "cache-dtype": "fp8",
            "attention-backend": "FLASHINFER_MLA_SPARSE_DSV4",
        },
    ),
    Published(
        "vllm: structured output with V4, a space missing before the line's end",
        """vllm serve deepseek-ai/DeepSeek-V4-Pro\\
  --served-model-name "deepseek-ai/DeepSeek-V4-Pro" \\
  --kv-cache-dtype fp8 --block-size 256 --enable-expert-parallel \\
  --tensor-parallel-size 8 \\
  --model-loader-extra-config '{"enable_multithread_load": true, "num_threads": 12}'""",
        gpu="b300",
        texts={"model": "v4-pro", "tp": "8"},
    ),
    Published(
        "vllm#41834",
        """vllm serve deepseek-ai/DeepSeek-V4-Flash --kv-cache-dtype fp8 \\
    --load-format instanttensor \\
    --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}' \\
    --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}' \\
    --enable-prefix-caching --max-cudagraph-capture-size 8 -tp 2 -pp 1""",
        gpu="rtx-pro-6000",
        texts={"tp": "2", "pp": "1", "draft-layers": "1"},
    ),
    Published(
        "AIME26 on 8 x B200 with SGLang",
        """sglang serve --trust-remote-code --model-path deepseek-ai/DeepSeek-V4-Flash-0731 \\
  --tp 8 --moe-runner-backend flashinfer_mxfp4 --speculative-algorithm DSPARK \\
  --speculative-dspark-block-size 4 --disable-flashinfer-autotune \\
  --swa-full-tokens-ratio 0.1 --mem-fraction-static 0.85 --enable-cache-report \\
  --host 0.0.0.0 --port 30000 --max-running-requests 4""",
        gpu="b200",
        texts={"draft-layers": "3", "draft-tokens": "5", "request-limit": "4",
               "window-ratio": "0.1"},
    ),
    Published(
        "SGLang cookbook: B200, Pro, low latency",
        """sglang serve --trust-remote-code --model-path deepseek-ai/DeepSeek-V4-Pro \\
    --tp 8 --moe-runner-backend flashinfer_mxfp4 \\
    --speculative-algo EAGLE --speculative-num-steps 3 \\
    --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \\
    --chunked-prefill-size 4096 --disable-flashinfer-autotune \\
    --mem-fraction-static 0.88""",
        gpu="b200",
        texts={"draft-layers": "1", "draft-tokens": "4", "step-tokens": "4096"},
    ),
    Published(
        "SGLang cookbook: H200, Flash, throughput",
        "sglang serve --trust-remote-code --model-path deepseek-ai/DeepSeek-V4-Flash "
        "--tp 4 --moe-runner-backend marlin",
        texts={"tp": "4", "model": "v4-flash"},
    ),
    Published(
        "InferenceX#2128",
        "sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8 --moe-runner-backend marlin "
        "--mem-fraction-static 0.88",
        texts={"memory-fraction": "0.88", "tp": "8"},
    ),
    Published(
        "sglang#34822",
        """CUDA_VISIBLE_DEVICES=0,1,2,3  \\
SGLANG_ENABLE_JIT_DEEPGEMM=1   \\
SGLANG_DSV4_FP4_EXPERTS=1   \\
python -m sglang.launch_server     \\
--model-path /models/deepseek-ai/DeepSeek-V4-Flash-0731/     \\
--trust-remote-code    \\
--moe-runner-backend marlin     \\
--chunked-prefill-size 65536     \\
--max-total-tokens 2048000     \\
--context-length 1024000          \\
--tp 4       \\
 --mem-fraction-static 0.85     \\
--max-running-requests   48   \\
--speculative-algorithm DSPARK \\
--speculative-dspark-block-size 5  \\
--disable-radix-cache \\
--swa-full-tokens-ratio 0.2   \\
--dp 4   \\
--enable-dp-attention  \\
--enable-dp-lm-head""",
        gpu="h100",
        texts={"tp": "1", "dp": "4", "context": "1024000", "kv-blocks": "2048000",
         "prefix-cache": "off", "step-tokens": "65536"},
    ),
    Published(
        "ktransformers#1998",
        """python -m sglang.launch_server --host 0.0.0.0 --port 30000 \\
  --model /mnt/models/models/DeepSeek-V4-Flash/ \\
  --kt-weight-path /mnt/models/models/DeepSeek-V4-Flash/ \\
  --kt-method MXFP4 --kt-num-gpu-experts 1 \\
  --tensor-parallel-size 4 --attention-backend flashinfer --mem-fraction-static 0.9 \\
  --chunked-prefill-size 2048 --max-running-requests 2 --trust-remote-code \\
  --cuda-graph-bs 1 2 4 --cuda-graph-max-bs 4 --disable-radix-cache""",
        gpu="h100",
        texts={"engine": "ktransformers", "model": "v4-flash", "request-limit": "2",
         "prefix-cache": "off"},
        options={"weights": "80GiB"},
        uncounted=("--cuda-graph-max-bs", "--kt-num-gpu-experts"),
    ),
    Published(
        "two DGX Sparks with SGLang",
        """#!/usr/bin/env bash
set -euo pipefail
RANK="${1:?rank 0|1}"
IMAGE="${IMAGE:-lmsysorg/sglang:dev-v4f-2dgx-v2}"
MODEL_DIR="${MODEL_DIR:-DeepSeek-V4-Flash-Vision-Exp}"
CTX="${CTX:-327680}"; MAX_REQ="${MAX_REQ:-32}"; CG_BS="${CG_BS:-32}"
# 0.72 plus a page-cache flusher during load loads cleanly
MEM_FRAC="${MEM_FRAC:-0.72}"
case "$RANK" in
  0) MODEL_HOST="/var/tmp/models/$MODEL_DIR" ;;
esac
[ -f "$MODEL_HOST/config.json" ] || { echo "model not found"; exit 3; }
docker run --gpus all -d --name spark --network host \\
  -v "$MODEL_HOST:/models/$MODEL_DIR:ro" \\
  -e SGLANG_OPT_FP8_WO_A_GEMM=1 -e NCCL_NET=IB \\
  "$IMAGE" \\
  sglang serve --trust-remote-code --model-path "/models/$MODEL_DIR" \\
    --tp 2 --nnodes 2 --node-rank "$RANK" \\
    --moe-runner-backend b12x --speculative-algorithm DSPARK \\
    --chunked-prefill-size 8192 --context-length "$CTX" --mem-fraction-static "$MEM_FRAC" \\
    --swa-full-tokens-ratio 0.2 --cuda-graph-max-bs-decode "$CG_BS" \\
    --max-running-requests "$MAX_REQ" ${SGLANG_EXTRA:-}
""",
        gpu="gb10",
        texts={"model": "v4-flash", "context": "327680", "memory-fraction": "0.72",
         "window-ratio": "0.2", "request-limit": "32"},
        uncounted=("--cuda-graph-max-bs-decode",),
    ),
    Published(
        "a snapshot hook for V4 on two H200",
        """docker run --gpus all --ipc=host -p 8000:8000 \\
  -e KAKEYA_SNAPSHOT_DSV4=1 -e VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=256 \\
  vllm/vllm-openai:deepseekv4-cu130 deepseek-ai/DeepSeek-V4-Flash \\
  --trust-remote-code --kv-cache-dtype fp8 --block-size 256 \\
  --tensor-parallel-size 2 --pipeline-parallel-size 1 \\
  --gpu-memory-utilization 0.90 --max-model-len 32768 \\
  --compilation-config '{"cudagraph_mode":"PIECEWISE", "custom_ops":["all"]}'""",
        texts={"tp": "2", "context": "32768", "logits-limit": "256MiB"},
    ),
    Published(
        "vllm-project.github.io#196: JSON that is not quoted",
        """docker run --gpus all \\
  --ipc=host -p 8000:8000 \\
  vllm/vllm-openai:deepseekv4-cu130 deepseek-ai/DeepSeek-V4-Pro \\
  --trust-remote-code --kv-cache-dtype fp8 --block-size 256 --enable-expert-parallel \\
  --data-parallel-size 8 \\
  --compilation-config {"cudagraph_mode":"FULL_AND_PIECEWISE", "custom_ops":["all"]} \\
""",
        gpu="b300",
        texts={"dp": "8", "model": "v4-pro"},
    ),
    Published(
        "sglang#23600",
        """SGLANG_JIT_DEEPGEMM_PRECOMPILE=0 \\
sglang serve \\
  --trust-remote-code --model-path deepseek-ai/DeepSeek-V4-Flash --tp 4 \\
  --moe-runner-backend flashinfer_mxfp4 --speculative-algo EAGLE \\
  --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \\
  --chunked-prefill-size 4096 --host 0.0.0.0 --port 30000""",
        gpu="b200",
        texts={"tp": "4", "draft-layers": "1", "draft-tokens": "4"},
    ),
    Published(
        "vllm-project/recipes: DeepSeek-V4-Flash.yaml, its model",
        """model:
  model_id: "deepseek-ai/DeepSeek-V4-Flash"
  min_vllm_version: "0.20.0"
  architecture: moe
  context_length: 1048576
  base_args:
    - "--trust-remote-code"
    - "--kv-cache-dtype"
    - "fp8"
    - "--block-size"
    - "256"
""",
        gpu="b300",
        texts={"engine": "vllm", "model": "v4-flash", "block-tokens": "256"},
    ),
    Published(
        "vllm-deepseek-v4-sm89#108",
        """vllm serve $CKPT \\
  --served-model-name deepseek-v4.1-flash \\
  --tensor-parallel-size 8 --kv-cache-dtype fp8 --block-size 128 --max-model-len 1001024 \\
  --max-num-seqs 8 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.92\\
  --enable-prefix-caching --engram-config '{"cpu_offload":true}'""",
        texts={"model": "v4.1-flash", "tp": "8", "context": "1001024"},
        uncounted=("--engram-config",),
    ),
    Published(
        "llm-d#1737",
        """vllm serve deepseek-ai/DeepSeek-V4-Pro --tensor-parallel-size $TP_SIZE \\
  --data-parallel-size $((LWS_GROUP_SIZE * DP_SIZE_LOCAL)) --max-model-len 9280""",
        refused="--tensor-parallel-size is $TP_SIZE, which nothing here sets",
    ),
    Published(
        "sglang#23598: Ascend",
        "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3 python -m sglang.launch_server --tp-size 4 "
        "--model-path /weights/DeepSeek-V4-Flash-w8a8 --mem-fraction-static 0.8",
        texts={"gpu": "ascend-910b", "tp": "4"},
    ),
    Published(
        "ROCm/vllm#895: Python",
        'llm = LLM(\n    model="/home/models/DeepSeek-V4-Flash",\n    tensor_parallel_size=4,\n)',
        texts={"engine": "vllm", "model": "v4-flash", "tp": "4"},
    ),
)  # fmt: skip
