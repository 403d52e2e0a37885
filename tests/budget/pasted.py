"""What people paste beside plain commands: containers, units, scripts, recipes, pods.

One row an input: what of ours it means, what is said not to be read, or why it is refused. The
cases of shared/data are read from there.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pasted:
    """An input with the options and the environment that are given besides."""

    kind: str  # or where it is published
    text: str
    texts: dict[str, str] = field(default_factory=dict)
    which: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    unread: str = ""
    refused: str = ""
    gpu: str = "b200"
    uncounted: tuple[str, ...] | None = None  # flags that change sizes and are not counted


VLLM_2 = {"engine": "vllm", "tp": "2", "context": "131072"}
PRO_8 = {"model": "v4-pro", "tp": "8"}

PASTED = (
    # ---- containers
    Pasted(
        "entrypoint",
        """docker run -d --gpus all -p 8000:8000 -v /data:/model:ro -e HF_HUB_OFFLINE=1 \\
  --entrypoint=/usr/local/bin/vllm my.registry:5000/team/img:2026-06 \\
  serve /model/DeepSeek-V4-Flash --tensor-parallel-size 2 --max-model-len 131072""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "entrypoint",
        """podman run --rm -it --device nvidia.com/gpu=all --entrypoint python3 \\
  quay.io/me/sg:dev -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8""",
        PRO_8 | {"engine": "sglang"},
    ),
    Pasted(
        "entrypoint",
        """docker run --gpus all --entrypoint /bin/bash img:latest -c "cd /w && vllm serve \\
deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 2 --max-model-len 131072" """,
        VLLM_2,
    ),
    Pasted(
        "entrypoint",
        """services:
  s:
    image: registry.local/dsv4:1
    entrypoint: ["python3", "-m", "sglang.launch_server"]
    command: --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8
""",
        PRO_8 | {"engine": "sglang"},
    ),
    Pasted(
        "frontend",
        "docker run --gpus all vllm/vllm-openai:v0.30 python3 -m dynamo.frontend --port 8000",
        refused="no launch command",
    ),
    Pasted(
        "frontend",
        """services:
  router: {image: "lmsysorg/sglang:v0.5.23", command: ["python3", "-m",
    "sglang_router.launch_router", "--pd-disaggregation", "--prefill", "http://a:30000"]}
  worker: {image: "lmsysorg/sglang:v0.5.23", command: "sglang serve --model-path v4-pro --tp 8"}
""",
        PRO_8 | {"engine": "sglang:0.5.23"},
    ),
    Pasted(
        "frontend",
        """python3 -m dynamo.frontend --router-mode kv &
python3 -m dynamo.vllm --model deepseek-ai/DeepSeek-V4-Pro --tensor-parallel-size 8""",
        PRO_8 | {"engine": "vllm"},
    ),
    Pasted(
        "roles",
        """environment: {model_path: /lustre/DeepSeek-V4-Pro}
worker_config:
  gen: {tensor_parallel_size: 8, enable_attention_dp: true, max_batch_size: 128,
        kv_cache_config: {free_gpu_memory_fraction: 0.75, tokens_per_block: 128}}
  ctx: {tensor_parallel_size: 4, enable_attention_dp: true, max_batch_size: 4,
        kv_cache_config: {free_gpu_memory_fraction: 0.4}}
""",
        {"engine": "trtllm", "model": "v4-pro", "dp": "8", "memory-fraction": "0.75"},
        which="decode",
    ),
    # ---- images and values of charts
    Pasted(
        "chart",
        """servingEngineSpec:
  modelSpec:
  - repository: "vllm/vllm-openai"
    tag: "v0.25.0"
    modelURL: "deepseek-ai/DeepSeek-V4-Flash"
    vllmConfig:
      maxModelLen: 131072
      tensorParallelSize: 2
      extraArgs: ["--max-num-batched-tokens", "4096"]
""",
        VLLM_2 | {"engine": "vllm:0.25.0", "step-tokens": "4096"},
        uncounted=(),
    ),
    Pasted(
        "chart",
        """image: {repository: lmsysorg/sglang, tag: v0.5.22-cu130}
command: [python3, -m, sglang.launch_server, --model-path, deepseek-ai/DeepSeek-V4-Pro]
args: ["--tp", "8"]
""",
        PRO_8 | {"engine": "sglang:0.5.22"},
    ),
    Pasted(
        "chart",
        """applications:
- args:
    llm_configs:
    - model_loading_config: {model_id: dsv4, model_source: deepseek-ai/DeepSeek-V4-Flash}
      engine_kwargs: {tensor_parallel_size: 2, max_model_len: 131072, async_scheduling: false,
        enforce_eager: false}
""",
        VLLM_2 | {"overlap": "1"},
    ),
    Pasted(
        "chart",
        """decode:
  parallelism: {tensor: 2, data: 1}
  containers:
  - image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
    modelCommand: vllmServe
    args: ["--max-model-len=131072"]
modelArtifacts: {name: deepseek-ai/DeepSeek-V4-Flash}
""",
        VLLM_2,
    ),
    Pasted(
        "job",
        """resources: {accelerators: "H100:8"}
envs: {MODEL: deepseek-ai/DeepSeek-V4-Flash, LONGEST: 131072}
run: |
  vllm serve $MODEL --tensor-parallel-size 2 --max-model-len $LONGEST
""",
        VLLM_2 | {"gpu": "h100"},
    ),
    Pasted(
        "job",
        """#!/bin/bash
#SBATCH --gres=gpu:h100:8
srun vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 2 --max-model-len 131072
""",
        VLLM_2 | {"gpu": "h100"},
    ),
    *(
        Pasted(
            "pod",
            f"""spec:
  nodeSelector: {{{key}: {label}}}
  containers:
  - image: vllm/vllm-openai:v0.33.0
    args: [--model, deepseek-ai/DeepSeek-V4-Flash, -tp, "2", --max-model-len, "131072"]
""",
            VLLM_2 | {"engine": "vllm:0.33.0", "gpu": gpu},
        )
        for key, label, gpu in (
            ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "h100"),
            ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB", "a100-80gb"),
            ("cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb", "h100"),
            ("nvidia.com/gpu.product", "NVIDIA-H20-3e", "h20-3e"),
        )
    ),
    Pasted(
        "pod",
        """nodeSelector: {nvidia.com/gpu.product: NVIDIA-A30}
containers:
- image: vllm/vllm-openai:v0.33.0
  args: [--model, deepseek-ai/DeepSeek-V4-Flash, -tp, "2", --max-model-len, "131072"]
""",
        VLLM_2 | {"engine": "vllm:0.33.0"},
        unread="GPU NVIDIA-A30, which is not known: h200 is taken",
    ),
    *(
        Pasted(
            "Dockerfile",
            "FROM vllm/vllm-openai:v0.33.0\nENV M=deepseek-ai/DeepSeek-V4-Flash \\\n"
            f"    LONGEST=131072\nENV TP 2\nRUN vllm --version\n{start}\n",
            VLLM_2 | {"engine": "vllm:0.33.0"},
        )
        for start in (
            "CMD vllm serve $M --tensor-parallel-size $TP \\\n    --max-model-len $LONGEST",
            """ENTRYPOINT ["vllm", "serve"]
CMD ["deepseek-ai/DeepSeek-V4-Flash", "-tp", "2", \\
  "--max-model-len", "131072"]""",
        )
    ),
    Pasted(
        "quoted",
        "```text\nGPU 0: NVIDIA H20-3e\n```\nI start with\n\n> ```\n> vllm serve "
        "/m/DeepSeek-V4-Flash -tp 2 --max-model-len 128K\n> ```\n",
        VLLM_2 | {"gpu": "h20-3e"},
    ),
    *(
        Pasted(
            "another's tag",
            f"docker run --gpus all {image} python3 -m sglang.launch_server "
            "--model-path deepseek-ai/DeepSeek-V4-Pro --tp 8",
            PRO_8 | {"engine": "sglang"},
        )
        for image in (
            "nvcr.io/nvidia/ai-dynamo/sglang-runtime:0.9.0",
            "nvcr.io/nvidia/sglang:26.02-py3",
            "lmcache/sglang:v0.3.9",
        )
    ),
    # ---- units
    Pasted(
        "unit",
        """[Service]
Environment="SGLANG_DSV4_COMPRESS_STATE_DTYPE=bfloat16" "TP=8"
ExecStartPre=/bin/sleep 5
ExecStart=-/opt/sg/bin/python -m sglang.launch_server --model-path /m/DeepSeek-V4-Pro \\
  --tp ${TP}
Restart=always
""",
        PRO_8 | {"engine": "sglang", "state": "bf16"},
    ),
    Pasted(
        "unit",
        """[Unit]
Description=DeepSeek
[Container]
Image=docker.io/vllm/vllm-openai:v0.30.0
Environment=VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=256
Exec=--model deepseek-ai/DeepSeek-V4-Pro --tensor-parallel-size 8
[Install]
WantedBy=default.target
""",
        PRO_8 | {"engine": "vllm:0.30.0", "logits-limit": "256MiB"},
    ),
    Pasted(
        "unit",
        """[program:llm]
environment=CUDA_VISIBLE_DEVICES="0,1"
command=/srv/venv/bin/vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 --max-model-len 128K
""",
        VLLM_2,
    ),
    Pasted(
        "wrapping",
        "docker run --gpus all -p 8000:8000 `\n  vllm/vllm-openai:v0.30.0 `\n"
        "  deepseek-ai/DeepSeek-V4-Pro `\n  --tensor-parallel-size 8\n",
        PRO_8 | {"engine": "vllm:0.30.0"},
    ),
    # ---- scripts
    Pasted(
        "script",
        """check MODEL TP
vllm serve $MODEL --tensor-parallel-size=$TP --max-num-seqs $CONC > server.log 2>&1 &""",
        PRO_8,
        options={"model": "v4-pro", "tp": "8"},
        unread="--max-num-seqs $CONC",
    ),
    Pasted(
        "script",
        'vllm serve "$MODEL" -tp "${TP}" --max-model-len $((ISL + OSL + 256))',
        PRO_8,
        environment={"MODEL": "/w/DeepSeek-V4-Pro", "TP": "8"},
        unread="--max-model-len $((ISL + OSL + 256))",
    ),
    Pasted(
        "script",
        "vllm serve $MODEL --tensor-parallel-size $TP",
        {"engine": "vllm", "model": "v4-pro"},
        options={"model": "v4-pro"},
        unread="--tensor-parallel-size $TP, which nothing here sets: by --gpus, else",
    ),
    Pasted(
        "script",
        "# DeepSeek-V4-Pro on one node; R1's flags stay\nvllm serve $MODEL -tp $TP -dp 1",
        {"engine": "vllm", "model": "v4-pro", "dp": "1"},
        unread="v4-pro, the only one that the text names, is taken --model $MODEL -tp $TP, which",
    ),
    Pasted(
        "script",
        "# deepseek-ai/DeepSeek-V4-Flash; DeepSeek-V4-Pro does not fit\nvllm serve $MODEL -tp 8",
        refused="--model is $MODEL, which nothing here sets: add --model",
    ),
    Pasted(
        "script",
        "# as DeepSeek-V4-Flash\nvllm serve deepseek-ai/DeepSeek-R1 -tp 8",
        refused="--model deepseek-ai/DeepSeek-R1: which model that is is not clear",
    ),
    Pasted(
        "script",
        "python -m sglang.launch_server --model-path DeepSeek-V4-Pro --tp $TP --dp $TP "
        "--enable-dp-attention",
        refused="--tp is $TP, which nothing here sets: add --tp",
    ),
    Pasted(
        "script",
        "vllm serve DeepSeek-V4-Pro -tp $TP -dp 4",
        refused="-tp is $TP, which nothing here sets: add --tp",
    ),
    Pasted(
        "script",
        """ARGS=(
  --tp 8          # all of them
  --mem-fraction-static 0.88
)
[[ -n "$SPEC" ]] && ARGS+=(--speculative-algorithm EAGLE)
[[ "$CTX" -gt 1000 ]] && ARGS+=(--context-length "$CTX")
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Pro "${ARGS[@]}" """,
        PRO_8 | {"memory-fraction": "0.88", "context": "8192"},
        environment={"CTX": "8192"},
        unread="$SPEC",
    ),
    Pasted(
        "script",
        """if [ "$DP_ATTENTION" = "true" ]; then
  PAR=(--tp $TP --dp $TP --enable-dp-attention)
else
  PAR=(--tp $TP)
fi
sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro "${PAR[@]}" """,
        {"model": "v4-pro", "tp": "1", "dp": "8"},
        environment={"DP_ATTENTION": "true", "TP": "8"},
    ),
    Pasted(
        "script",
        """if nvidia-smi | grep -q H200; then PAR=(--tp 8); else PAR=(--tp 4); fi
sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro "${PAR[@]}" """,
        refused="${PAR[@]}: not read, and it may give the layout",
    ),
    Pasted(
        "script",
        """COMMON="--model-path deepseek-ai/DeepSeek-V4-Pro --tp 8"
JSON='{"host_to_device_ratio": 4}'
CMD="python3 -m sglang.launch_server $COMMON"
$CMD --hisparse-config "$JSON" """,
        PRO_8 | {"hisparse-ratio": "4"},
    ),
    Pasted(
        "script",
        'srun -N1 bash -lc "exec vllm serve $MODEL -tp 8"',
        PRO_8,
        environment={"MODEL": "deepseek-ai/DeepSeek-V4-Pro"},
    ),
    Pasted(
        "script",
        """case "$MODEL" in
  *Flash*) EXTRA="--max-num-seqs 64" ;;
  *) EXTRA="" ;;
esac
vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8 $EXTRA""",
        PRO_8,
        unread="$EXTRA",
    ),
    # ---- TensorRT-LLM
    Pasted(
        "trtllm",
        """cat > /tmp/extra.yaml <<EOF
enable_attention_dp: true
kv_cache_config:
    dtype: fp8
    enable_block_reuse: false
    free_gpu_memory_fraction: 0.8
EOF
mpirun -n 1 trtllm-serve deepseek-ai/DeepSeek-V4-Pro --tp_size=$TP --ep_size=$TP \\
  --max_batch_size 64 --max_seq_len=9472 --extra_llm_api_options=/tmp/extra.yaml""",
        {"engine": "trtllm", "tp": "1", "dp": "8", "ep": "8", "memory-fraction": "0.8",
         "main-format": "fp8", "context": "9472"},
        environment={"TP": "8"},
    ),
    Pasted(
        "trtllm",
        """backend:
  type: trtllm
  decode_environment: {TLLM_LOG_LEVEL: INFO}
  trtllm_config:
    decode:
      tensor_parallel_size: 4
      moe_expert_parallel_size: 4
      max_batch_size: 16
      max_seq_len: 9472
      enable_chunked_prefill: true
      print_iter_log: true
      kv_cache_config: {free_gpu_memory_fraction: 0.6, tokens_per_block: 256}
model: {path: deepseek-v4-flash}
resources: {gpu_type: b200}
""",
        {"engine": "trtllm", "model": "v4-flash", "tp": "4", "dp": "1", "memory-fraction": "0.6",
         "block-tokens": "256", "gpu": "b200"},
    ),
    Pasted(
        "roles",
        """model: {path: deepseek-v4-pro}
backend:
  type: sglang
  prefill_environment: {SGLANG_DSV4_COMPRESS_STATE_DTYPE: bfloat16}
  decode_environment: {SGLANG_OPT_USE_ONLINE_COMPRESS: "1", PYTHONUNBUFFERED: "1"}
  sglang_config:
    prefill: {tensor-parallel-size: 8, chunked-prefill-size: 65536}
    decode: {tensor-parallel-size: 8, max-running-requests: 4096}
""",
        {"engine": "sglang", "model": "v4-pro", "role": "decode", "state": "online"},
        which="decode",
    ),
    Pasted(
        "trtllm",
        """kind: ConfigMap
data:
  decode.yaml: |
    kv_cache_config: {free_gpu_memory_fraction: 0.7}
    speculative_config: {decoding_type: MTP, max_draft_len: 3}
---
spec:
  services:
    Frontend:
      mainContainer: {image: "x/tensorrtllm-runtime:1", args: [-m, dynamo.frontend]}
    Decode:
      extraPodSpec:
        mainContainer:
          image: x/tensorrtllm-runtime:1
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.trtllm --model-path /m/DeepSeek-V4-Pro --tensor-parallel-size 8
            --extra-engine-args /cfg/decode.yaml"]
""",
        PRO_8 | {"engine": "trtllm", "memory-fraction": "0.7", "draft-layers": "1",
                 "draft-tokens": "3"},
    ),
    Pasted(
        "trtllm",
        """model: deepseek-ai/DeepSeek-V4-Pro
tensor_parallel_size: 8
enable_attention_dp: false
max_batch_size: 8
kv_cache_config: {max_tokens: 262144, free_gpu_memory_fraction: 0.7}
""",
        PRO_8 | {"engine": "trtllm", "dp": "1", "kv-blocks": "2048"},
    ),
    # ---- roles and names
    Pasted(
        "roles",
        """leaderTemplate: {spec: {containers: [{image: "lmsysorg/sglang:v0.5.20",
  env: [{name: NODE, value: "0"}],
  args: [--model-path, deepseek-ai/DeepSeek-V4-Pro, --tp, "16", --node-rank, "0"]}]}}
workerTemplate: {spec: {containers: [{image: "lmsysorg/sglang:v0.5.20",
  args: [--model-path, deepseek-ai/DeepSeek-V4-Pro, --tp, "16", --node-rank, "1"]}]}}
""",
        {"engine": "sglang:0.5.20", "model": "v4-pro", "tp": "16"},
    ),
    Pasted(
        "roles",
        """backend:
  type: sglang
  sglang_config:
    prefill: {model-path: /model/, served-model-name: deepseek-ai/DeepSeek-V4-Pro, tp-size: 8}
    decode: {model-path: /model/, served-model-name: deepseek-ai/DeepSeek-V4-Pro, tp-size: 8,
      max-running-requests: 64}
""",
        PRO_8 | {"role": "decode", "request-limit": "64"},
        which="decode",
    ),
    Pasted(
        "roles",
        """backend: {type: sglang, sglang_config: {
  prefill: {model-path: /model/, tp-size: 8, page-size: 256},
  decode: {model-path: /model/, tp-size: 8, page-size: 128}}}
""",
        refused="1: sglang prefill /model/ (line 2); 2: sglang decode /model/ (line 3)",
    ),
    Pasted(
        "roles",
        """name: agg
model: {name: deepseek-ai/DeepSeek-V4-Pro, path: hf_model}
backend:
  vllm_config:
    aggregated: {tensor-parallel-size: 8, max-model-len: 9472, kv-cache-dtype: fp8}
""",
        PRO_8 | {"engine": "vllm", "context": "9472"},
    ),
    Pasted(
        "roles",
        "vllm serve /model --served-model-name DeepSeek-V4-Pro v4 -tp 8",
        PRO_8,
    ),
    Pasted(
        "roles",
        """model: {container: "lmsysorg/sglang:nightly-dev-cu13-20260721-8905cbd4"}
resources: {gpu_type: b300}
backend:
  sglang_config:
    prefill: {served-model-name: deepseek-ai/DeepSeek-V4-Pro, tp-size: 4, dp-size: 4,
      enable-dp-attention: true, chunked-prefill-size: 32768}
benchmark: {type: sa-bench, isl: 8192, osl: 1024}
""",
        {"engine": "sglang:0.5.15", "dp": "4", "role": "prefill", "context": "9216"},
        unread="20260721: 0.5.15, the newest of that day, is taken a longest request: its "
        "benchmark's 9,216 tokens",
    ),
    Pasted(
        "roles",
        """backend: {vllm_config: {decode: {tensor-parallel-size: 8, max-model-len: 9472,
  max-num-seqs: 64}}}
""",
        {"engine": "vllm", "tp": "8"},
        unread="a model: v4-flash is taken",
    ),
    # ---- other wrappings
    Pasted(
        "wrapping",
        """meta: {date_added: 2026-04-24, title: DeepSeek-V4-Flash}
model: {model_id: deepseek-ai/DeepSeek-V4-Flash, base_args: [--tensor-parallel-size, "4"]}
guide: |
  Started before `vllm serve`.
""",
        {"engine": "vllm", "model": "v4-flash", "tp": "4"},
    ),
    Pasted(
        "wrapping",
        "docker run --gpus all vllm/vllm-openai:nightly-arm64-cu13.0.1-426e59f \\\n"
        "  deepseek-ai/DeepSeek-V4-Pro -tp 8",
        PRO_8 | {"engine": "vllm"},
    ),
    Pasted(
        "wrapping",
        """# Serving it

It's the model's README: don't read this as a script.

```bash
export TP=8
vllm serve deepseek-ai/DeepSeek-V4-Pro --tensor-parallel-size $TP
```

That's all; it isn't more.
""",
        PRO_8,
    ),
    Pasted(
        "wrapping",
        """servingEngineSpec:
  modelSpec:
    - name: dsv4
      modelURL: deepseek-ai/DeepSeek-V4-Pro
      vllmConfig: {tensorParallelSize: 8, maxModelLen: 131072, extraArgs: ["--max-num-seqs", "64"]}
""",
        PRO_8 | {"context": "131072", "request-limit": "64"},
    ),
    Pasted(
        "wrapping",
        """applications:
  - args:
      llm_configs:
        - model_loading_config: {model_id: dsv4, model_source: deepseek-ai/DeepSeek-V4-Pro}
          engine_kwargs: {tensor_parallel_size: 8, max_model_len: 131072, max_num_seqs: 32}
""",
        {"tp": "8", "context": "131072", "request-limit": "32"},
        options={"model": "v4-pro"},
    ),
    Pasted(
        "wrapping",
        """python3 - <<'PY'
print("it's a check")
PY
sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8
""",
        PRO_8 | {"engine": "sglang"},
    ),
    Pasted(
        "wrapping",
        "model: deepseek-ai/DeepSeek-V4-Pro\ntensor-parallel-size: 8\nmax-model-len: 128k\n",
        PRO_8 | {"engine": "vllm", "context": "128000"},
    ),
    Pasted(
        "wrapping",
        """spec:
  containers:
    - name: server
      image: vllm/vllm-openai:v0.33.0
      env: [{name: VLLM_SPARSE_INDEXER_MAX_LOGITS_MB, value: "256"}]
      args: ["--model", "deepseek-ai/DeepSeek-V4-Flash", "--max-num-seqs", "8"]
""",
        {"engine": "vllm:0.33.0", "logits-limit": "256MiB", "request-limit": "8"},
    ),
    Pasted(
        "wrapping",
        """services:
  llama:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    command: -m /models/DeepSeek-V4-Flash.gguf -c 131072 -np 2
""",
        {"engine": "llama.cpp", "context": "65536"},
        options={"weights": "150GiB"},
    ),
    Pasted(
        "wrapping",
        "srun --container-image=lmsysorg/sglang:v0.5.20-cu130 bash -c "
        '"python -m sglang.launch_server --model deepseek-ai/DeepSeek-V4-Pro"',
        {"engine": "sglang:0.5.20", "model": "v4-pro"},
    ),
    Pasted(
        "wrapping",  # no YAML
        """vllm serve DeepSeek-V4-Flash --speculative-config '{"method": "mtp", "n": 1}' -tp 4""",
        {"tp": "4", "draft-layers": "1"},
    ),
    Pasted(
        "wrapping",
        """cat > /tmp/own.yaml <<EOF
max-model-len: 262144
tensor-parallel-size: 4
EOF
docker run --gpus all -v /tmp/own.yaml:/etc/own.yaml vllm/vllm-openai:v0.29.0 \\
  --model deepseek-ai/DeepSeek-V4-Flash --config /etc/own.yaml
""",
        {"tp": "4", "context": "262144"},
    ),
    Pasted(
        "wrapping",
        "kubectl exec p -- sh -c 'llama-server -m /m/DeepSeek-V4-Flash-Q4.gguf -c 65536 -np 2'",
        {"engine": "llama.cpp", "model": "v4-flash", "context": "32768", "request-limit": "2"},
        options={"weights": "150GiB"},
    ),
    # ---- functions, positional parameters, case
    Pasted(
        "function",
        """serve() {
  local model=$1 tp=${2:-4}
  shift 2
  vllm serve "$model" --tensor-parallel-size $tp "$@"
}
wait_for() { until curl -s localhost:$1; do sleep 1; done; }
function main
{
  serve deepseek-ai/DeepSeek-V4-Flash 2 --max-model-len 131072 && wait_for 8000
}
main
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "function",
        """start() { case "$1" in
  flash) M=deepseek-ai/DeepSeek-V4-Flash; TP=2;;
  pro|big) M=deepseek-ai/DeepSeek-V4-Pro; TP=8;;
esac
sglang serve --model-path $M --tp $TP; }
start big
""",
        PRO_8 | {"engine": "sglang"},
    ),
    Pasted(
        "function",  # that nothing calls: read at the end
        "serve() { vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size $TP; }\nTP=2",
        {"model": "v4-flash", "tp": "2"},
    ),
    Pasted(
        "function",
        """set -- vllm serve deepseek-ai/DeepSeek-V4-Flash
set -- "$@" --tensor-parallel-size 2
set -- "$@" --max-model-len 131072
exec "$@"
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    # ---- Python
    Pasted(
        "python",
        """from ray.serve.llm import LLMConfig, build_openai_app
TP = 2
config = LLMConfig(
    model_loading_config=dict(model_id="ds", model_source="deepseek-ai/DeepSeek-V4-Flash"),
    accelerator_type="B200",
    engine_kwargs=dict(tensor_parallel_size=TP, max_model_len=128 * 1024),
)
app = build_openai_app({"llm_configs": [config]})
""",
        VLLM_2 | {"gpu": "b200"},
    ),
    Pasted(
        "python",
        """import modal, subprocess
MODEL, N = "deepseek-ai/DeepSeek-V4-Flash", 2
image = modal.Image.debian_slim().pip_install("vllm==0.33.0")
@app.function(image=image, gpu=f"B200:{N}")
def serve(length: int = 131072):
    cmd = ["vllm", "serve", MODEL, "--max-model-len", str(length)]
    cmd += ["--tensor-parallel-size", str(N)]
    subprocess.Popen(" ".join(cmd), shell=True)
""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0", "gpu": "b200"},
    ),
    Pasted(
        "python",
        """import os, sglang as sgl
parser.add_argument("--tp-size", type=int, default=8)
engine = sgl.Engine(model_path=os.environ.get("MODEL", "deepseek-ai/DeepSeek-V4-Pro"),
                    tp_size=args.tp_size, context_length=131072)
""",
        PRO_8 | {"engine": "sglang", "context": "131072"},
    ),
    Pasted(
        "python",
        "llm = LLM('deepseek-ai/DeepSeek-V4-Flash', tensor_parallel_size=count())",
        {"model": "v4-flash", "engine": "vllm"},
        unread="--tensor_parallel_size $count, which nothing here sets: by --gpus",
    ),
    Pasted(
        "python",
        """kw = {"tensor-parallel-size": 4}
kw["tensor-parallel-size"] = 2
kw.update({"max-model-len": 131072}, **{"enforce-eager": False, "trust-remote-code": True})
cmd = ["vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash"]
for k, v in kw.items():
    if v is True:
        cmd.append(f"--{k}")
    elif v is not False:
        cmd += [f"--{k}", str(v)]
subprocess.run(args=cmd)
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "python",
        """GPU = "h200"
if not GPU == "b200":
    length = 131072
else:
    length = 4096
async def main():
    await asyncio.create_subprocess_exec("vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash",
        "--tensor-parallel-size", "2", "--max-model-len", str(length))
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "python",
        """for size in (2, 8):
    pass
os.execvp("sglang", ["sglang", "serve", "--model-path", "deepseek-ai/DeepSeek-V4-Pro",
                     "--tp", str(size)])
""",
        PRO_8 | {"engine": "sglang"},
    ),
    Pasted(
        "python",
        """import argparse, subprocess
FLEET = {"small": dict(tp=2, ctx=131072)}
def build(args, extra=""):
    if not extra:
        extra = "--max-num-seqs 64"
    cmd = ["vllm", "serve", args.model] + extra.split()
    cmd.extend(["--tensor-parallel-size", str(FLEET[args.size]["tp"])])
    if args.eager:
        return cmd + ["--kv-cache-dtype", "auto"]
    return cmd + ["--max-model-len", str(FLEET[args.size]["ctx"])]
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="deepseek-ai/DeepSeek-V4-Flash")
    p.add_argument("--size", default="small")
    p.add_argument("--eager", action="store_true")
    options = p.parse_args()
    subprocess.run(build(options, extra="--max-num-seqs 32"), check=True)
if __name__ == "__main__":
    main()
""",
        VLLM_2 | {"model": "v4-flash", "request-limit": "32"},
    ),
    Pasted(
        "python",
        """class Server:
    def __init__(self, tp):
        self.cmd = ["vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash"]
        self.cmd += ["--tensor-parallel-size", str(tp)]
    def start(self, n):
        Popen([*self.cmd, "--max-model-len", str(n)])
server = Server(2)
server.start(128 * 1024)
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    # ---- scripts of several kinds
    Pasted(
        "case",
        """GPU=${1:-h200}
A=(--trust-remote-code
)
case "$GPU" in
  h200)
    M=deepseek-ai/DeepSeek-V4-Flash
    A+=(--tensor-parallel-size 2 --max-model-len 131072)
    ;;
  *) M=deepseek-ai/DeepSeek-V4-Pro; A+=(--tensor-parallel-size 8) ;;
esac
: "
vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 1
"
exec vllm serve "$M" "${A[@]}"
""",
        VLLM_2 | {"model": "v4-flash"},
        unread="a GPU: h200",
    ),
    Pasted(
        "heredoc",
        """TP=2
cat > /tmp/go.sh <<EOF
export N=131072
vllm serve deepseek-ai/DeepSeek-V4-Flash \\
  --tensor-parallel-size $TP --max-model-len \\$N
EOF
ssh $HOST "docker run --gpus all -v /tmp:/tmp vllm/vllm-openai:v0.33.0 bash /tmp/go.sh"
""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0"},
    ),
    Pasted(
        "just",
        """ctx := "131072"
serve tp="2" *extra="":
    vllm serve deepseek-ai/DeepSeek-V4-Flash -tp {{tp}} --max-model-len {{ctx}} {{extra}}
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "make",
        """M ?= deepseek-ai/DeepSeek-V4-Flash
TP = 4
FLAGS = --tensor-parallel-size $(TP)
FLAGS += --max-model-len 131072
pro: TP = 2
pro:
\tvllm serve $(M) $(FLAGS)
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "published",
        "vllm serve moonshotai/Kimi-K2 -tp 8 --served-model-name deepseek-v4-pro",
        {},
        refused="--model moonshotai/Kimi-K2: which model that is is not clear",
    ),
    Pasted(
        "shortened",
        "On two H200s, SGLang 0.5.20:\n"
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Pro --tp-size 8"
        " --mem-frac 0.85 --speculative-algo EAGLE",
        PRO_8 | {"engine": "sglang:0.5.20", "memory-fraction": "0.85"},
        unread="a version: 0.5.20",
        gpu="h200",
    ),
    Pasted(
        "templates",
        """- hosts: gpus
  tasks:
  - command: vllm serve {{ m | default("deepseek-ai/DeepSeek-V4-Flash") }}
      -tp {{ tp | default(2) }} --max-model-len 131072
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "python",
        """LLMConfig(model_loading_config={"model_source": "deepseek-ai/DeepSeek-V4-Flash"},
    engine_kwargs={"tensor_parallel_size": 2, "max_model_len": 131072},
    runtime_env={"env_vars": {"VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "64"}})
""",
        VLLM_2 | {"logits-limit": "64MiB"},
    ),
    # ---- KServe
    Pasted(
        "kserve",
        """kind: InferenceService
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args: [--model_name=ds, --model_id=deepseek-ai/DeepSeek-V4-Flash,
        --tensor-parallel-size=2, --max-model-len=131072]
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "kserve",
        """kind: ServingRuntime
metadata: {name: own}
spec:
  containers:
  - image: vllm/vllm-openai:v0.33.0
    command: [python, -m, vllm.entrypoints.openai.api_server]
    args: [--model=/mnt/models]
---
kind: InferenceService
spec:
  predictor:
    model:
      runtime: own
      storageUri: hf://deepseek-ai/DeepSeek-V4-Flash
      args: [--tensor-parallel-size=2, --max-model-len=131072]
""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0"},
    ),
    Pasted(
        "kserve",
        """kind: LLMInferenceService
spec:
  model: {uri: "hf://deepseek-ai/DeepSeek-V4-Pro"}
  parallelism: {tensor: 4, data: 2, expert: true}
  template:
    containers:
    - name: main
      image: vllm/vllm-openai:v0.33.0
      env:
      - {name: VLLM_ADDITIONAL_ARGS, value: --max-model-len 131072 --enforce-eager}
""",
        {"model": "v4-pro", "tp": "4", "dp": "2", "context": "131072"},
    ),
    # ---- variables alone, GPUs of images
    Pasted(
        "variables",
        """services:
  llama:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    environment: {LLAMA_ARG_HF_REPO: unsloth/DeepSeek-V4-Flash-GGUF, LLAMA_ARG_CTX_SIZE: 131072,
      LLAMA_ARG_N_PARALLEL: 2}
""",
        {"engine": "llama.cpp", "model": "v4-flash", "context": "65536", "request-limit": "2"},
        options={"weights": "150GiB"},
    ),
    Pasted(
        "variables",
        """export LLAMA_ARG_MODEL=/models/DeepSeek-V4-Flash-Q4_K_M.gguf LLAMA_ARG_CTX_SIZE=131072
export LLAMA_ARG_N_PARALLEL=2
llama-server
""",
        {"engine": "llama.cpp", "model": "v4-flash", "context": "65536", "request-limit": "2"},
        options={"weights": "150GiB"},
    ),
    Pasted(
        "variables",
        """docker run -d rocm/sgl-dev:v0.5.23-rocm700-mi35x-20261015 sleep infinity
docker exec sgl python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8
""",
        PRO_8 | {"gpu": "mi355x", "engine": "sglang:0.5.23"},
    ),
    # ---- variables that the same text sets
    Pasted(
        "set here",
        """services:
  vllm:
    image: vllm/vllm-openai:v0.33.0
    environment: {TP: "${TP:-2}", LEN: "131072"}
    command: >
      bash -c "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp $$TP --max-model-len $${LEN}"
""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0"},
    ),
    Pasted(
        "set here",
        """: "${MODEL:=deepseek-ai/DeepSeek-V4-Flash}" "${TP:=2}"
len=65536; args=(--port 8000)
while getopts "t:l:" o; do
  case $o in
    t) TP=$OPTARG ;;
    l) len=$OPTARG ;;
  esac
done
if (( len < 131072 )); then args+=(--max-model-len $(( len * 2 ))); fi
vllm serve $MODEL -tp $TP "${args[@]}"
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "set here",
        """FILE=/tmp/own.yaml
cat > $FILE <<EOF
max-model-len: 131072
EOF
vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 --config $FILE
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "set here",
        """kind: ConfigMap
metadata: {name: own}
data: {MODEL: deepseek-ai/DeepSeek-V4-Flash, ARGS: "-tp 2 --max-model-len 131072"}
---
kind: Pod
spec:
  nodeSelectorTerms: [{matchExpressions: [{key: product, values: [NVIDIA-B300]}]}]
  containers:
  - image: vllm/vllm-openai:v0.33.0
    envFrom: [{configMapRef: {name: own}}]
    command: [sh, -c]
    args: [exec vllm serve $MODEL $ARGS]
""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0", "gpu": "b300"},
        unread="a GPU: b300, the only one that the text names there, is taken",
    ),
    Pasted(
        "set here",
        """leaderWorkerTemplate:
  size: 2
  workerTemplate:
    containers:
    - env: [{name: LOCAL, value: "8"}]
      command: [bash, -c, "vllm serve DeepSeek-V4-Pro -tp 1 -dp $((LWS_GROUP_SIZE * LOCAL))"]
""",
        {"model": "v4-pro", "dp": "16", "tp": "1"},
    ),
    Pasted(
        "set here",
        """num_nodes: 2
resources: {accelerators: "H200:8"}
run: |
  TP=$((SKYPILOT_NUM_NODES * SKYPILOT_NUM_GPUS_PER_NODE))
  vllm serve deepseek-ai/DeepSeek-V4-Pro --tensor-parallel-size $TP
""",
        {"model": "v4-pro", "tp": "16", "gpu": "h200"},
    ),
    Pasted(
        "set here",
        """#SBATCH --nodes=4
#SBATCH --partition=gb200
srun vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 1 -dp $(( SLURM_NNODES * 4 ))
""",
        {"model": "v4-pro", "dp": "16", "gpu": "gb200"},
        unread="a GPU: gb200, the only one that the text names there, is taken",
    ),
    Pasted(
        "set here",
        """IMAGE ?= vllm/vllm-openai:v0.29.0
MODEL := deepseek-ai/DeepSeek-V4-Flash # small
big: MODEL := deepseek-ai/DeepSeek-V4-Pro
small:
	docker run --gpus all $(IMAGE) --model $(MODEL) -tp 8
""",
        PRO_8 | {"engine": "vllm:0.29.0"},
    ),
    Pasted(
        "set here",
        """model := env_var_or_default("MODEL", "deepseek-ai/DeepSeek-V4-Pro")
tp := "8"
serve:
    @python3 -m sglang.launch_server --model-path {{model}} --tp {{ tp }}
""",
        PRO_8 | {"engine": "sglang"},
    ),
    Pasted(
        "set here",
        """- hosts: gpus
  vars: {version: v0.31.0, tp: 2, more: [--max-model-len=131072, --max-num-seqs=64]}
  tasks:
  - docker_container:
      image: "vllm/vllm-openai:{{ version }}"
      command: >-
        --model deepseek-ai/DeepSeek-V4-Flash -tp {{ tp }} {{ more | join(' ') }}
""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.31.0", "request-limit": "64"},
    ),
    Pasted(
        "set here",
        """macros: {srv: llama-server --port 8080}
models:
  flash:
    cmd: |
      ${srv}
      -m /models/DeepSeek-V4-Flash-Q2_K.gguf
      -c 131072 -np 2
""",
        {"engine": "llama.cpp", "model": "v4-flash", "context": "65536", "request-limit": "2"},
        options={"weights": "150GiB"},
    ),
    # ---- other forms
    Pasted(
        "form",
        """base:
  model: {path: dsv4-pro-nvfp4}
  backend:
    sglang_config:
      decode: {served-model-name: deepseek-ai/DeepSeek-V4-Pro, tp: 8, mem-fraction-static: 0.9}
override_long:
  backend: {sglang_config: {decode: {context-length: 131072}}}
""",
        PRO_8 | {"context": "131072", "checkpoint": "dsv4-pro-nvfp4"},
        which="2",
    ),
    Pasted(
        "form",
        """[{"Config": {"Image": "vllm/vllm-openai:v0.33.0", "Env": ["A=b"],
  "Entrypoint": ["vllm", "serve"],
  "Cmd": ["deepseek-ai/DeepSeek-V4-Flash", "-tp", "2", "--max-model-len", "131072"]}}]""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0"},
    ),
    Pasted(
        "form",
        """{"cells": [
  {"cell_type": "markdown", "source": ["it's on 2x B200"]},
  {"cell_type": "code", "source": ["%pip install vllm==0.30.0\\n", "N = 2\\n"]},
  {"cell_type": "code", "source": ["args = {'max_model_len': 131072}\\n",
    "llm = LLM('deepseek-ai/DeepSeek-V4-Flash', tensor_parallel_size=N, **(args | {'seed': 1}))"]}
]}""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.30.0"},
        unread="a GPU: b200, the only one that the text names there, is taken",
    ),
    Pasted(
        "form",
        """python - <<'PY'
from tensorrt_llm import LLM
COMMON = {"max_seq_len": 131072}
llm = LLM(model="deepseek-ai/DeepSeek-V4-Flash", tensor_parallel_size=2,
          kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=0.7),
          speculative_config=MTPDecodingConfig(num_nextn_predict_layers=1),
          **{**COMMON, "seed": 1})
PY
""",
        {"engine": "trtllm", "tp": "2", "context": "131072", "memory-fraction": "0.7",
         "draft-layers": "1"},
    ),
    Pasted(
        "form",
        """It doesn't start with

vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 \\
  --max-model-len 131072

ValueError: the models's max seq len""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "form",
        "uvx vllm==0.33.0 serve deepseek-ai/DeepSeek-V4-Flash -tp 2 --max-model-len 131072",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0"},
    ),
    Pasted(
        "form",
        "vllm bench latency --model nvidia/DeepSeek-V4-Pro-NVFP4 -tp 8 "
        "--quantization modelopt_fp4",
        PRO_8 | {"engine": "vllm", "checkpoint": "nvidia/DeepSeek-V4-Pro-NVFP4"},
        uncounted=(),
    ),
    # ---- what starts no server, and several that do
    Pasted(
        "phantom",
        """log_info "Starting vllm serve with DP"
pkill -f "vllm serve" || true
trap 'echo "stopping vllm serve"; kill 0' EXIT
vllm serve --help > /dev/null; git clone https://github.com/antirez/ds4 && cd ds4
old() { vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8; }
if false; then vllm serve deepseek-ai/DeepSeek-V4-Pro; fi
vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 --max-model-len 131072
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "phantom",
        """containers:
- command: [bash, -c]
  args:
  - |
    echo "sglang serve --model-path deepseek-ai/DeepSeek-V4-Flash --tp 16"
    vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 --max-model-len 131072 &
    sglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8
""",
        PRO_8 | {"engine": "sglang"},
        which="2",
    ),
    Pasted(
        "phantom",
        """[Service]
ExecStartPre=-/usr/bin/pkill -f "vllm serve"
ExecStart=/usr/bin/vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 --max-model-len 131072
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "several",
        "for tp in 1 2; do\n  vllm serve deepseek-ai/DeepSeek-V4-Flash -tp $tp "
        "--max-model-len 131072\ndone",
        VLLM_2 | {"model": "v4-flash"},
        which="2",
    ),
    Pasted(
        "several",
        """Box A: 8xH100 80GB

    vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8

Box B: 2xB200, or GB200

    vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 --max-model-len 131072
""",
        PRO_8 | {"gpu": "h100"},
        which="1",
        unread="a GPU: h100, the only one that the text names there, is taken",
    ),
    Pasted(
        "several",
        """a = LLMConfig(model_loading_config={"model_id": "deepseek-ai/DeepSeek-V4-Flash"},
              accelerator_type="H200", engine_kwargs={"tensor_parallel_size": 4})
b = LLMConfig(model_loading_config={"model_id": "small", "model_source": "Qwen/Qwen3-8B"},
              accelerator_type="L40S", engine_kwargs={"max_num_seqs": 1, "max_model_len": 9})
""",
        which="2",
        refused="--model Qwen/Qwen3-8B: which model that is is not clear",
    ),
    Pasted(
        "python",
        """p.add_argument("--tp", type=int, default=2)
options = p.parse_args()
os.environ["VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"] = "256"
subprocess.run(["vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash", "-tp", str(options.tp),
                "--max-model-len", "131072"])
""",
        VLLM_2 | {"model": "v4-flash", "logits-limit": "256MiB"},
    ),
    Pasted(
        "form",
        """{"cells": [
  {"cell_type": "code", "source": ["TP = 2\\n", "MODEL = 'deepseek-ai/DeepSeek-V4-Flash'"]},
  {"cell_type": "code", "source": ["!vllm serve {MODEL} -tp $TP --max-model-len 131072 &"]}
]}""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "form",
        """image: {repository: vllm/vllm-openai, tag: v0.33.0}
model: deepseek-ai/DeepSeek-V4-Flash
extraArgs: ["--tensor-parallel-size=2", "--max-model-len=131072"]
""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0"},
    ),
    Pasted(
        "variables",
        "docker run --device=/dev/kfd rocm/vllm:rocm7.2_mi350_vllm_0.32.0 vllm serve "
        "deepseek-ai/DeepSeek-V4-Pro -tp 8",
        PRO_8 | {"engine": "vllm:0.32.0", "gpu": "mi355x"},
    ),
    # ---- what a function, a loop or a cell leaves as it was
    Pasted(
        "left",
        """LEN=131072; TP=2
warm() { local LEN=1024; curl -d $LEN localhost; }
f() { :; }
main() {
  vllm serve deepseek-ai/DeepSeek-V4-Flash -tp $TP --max-model-len $LEN
}
warm; TP=8 f
f || vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8
main || exit 1
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "left",
        """M=a
case $M in
  a | b ) LEN=131072 ;;
  *) LEN=8 ;;
esac
f() {
  local TP=4
  while [[ $# -gt 0 ]]; do
    case $1 in
      --len) LEN=$2; shift 2;;
      --tp) TP=$2; shift 2;;
    esac
  done
  vllm serve deepseek-ai/DeepSeek-V4-Flash -tp $TP --max-model-len $LEN
}
f --tp 2
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "left",
        """if curl x; then set -- -tp 8; fi
vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 "$@"
""",
        {"tp": "2"},
        unread="$@",
    ),
    Pasted(
        "left",
        """services:
  a:
    image: vllm/vllm-openai:v0.33.0
    command: |
      --model deepseek-ai/DeepSeek-V4-Flash \\
      --tensor-parallel-size 2 \\
      --max-model-len 131072
""",
        VLLM_2 | {"model": "v4-flash", "engine": "vllm:0.33.0"},
    ),
    Pasted(
        "left",
        r"""{"cells": [
  {"cell_type": "code", "source": "%%bash\nvllm serve deepseek-ai/DeepSeek-V4-Flash \\\n -tp 2"},
  {"cell_type": "code", "source": "files = !ls"}
]}""",
        {"model": "v4-flash", "tp": "2"},
    ),
    Pasted(
        "left",
        "# 8 x H20, or H200\nvllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8",
        {"model": "v4-pro", "tp": "8"},
    ),
    Pasted(
        "left",
        "vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8 --attention-config "
        """'{"use_fp4_indexer_cache": true}'""",
        PRO_8 | {"gpu": "b200"},
        unread="a GPU: b200 is taken, whose indexer keys may be MXFP4",
    ),
    Pasted(
        "left",
        """python3 - <<'EOF'
print('Server: vllm serve deepseek-ai/DeepSeek-V4-Pro -tp 8')
EOF
vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 2 --max-model-len 131072
""",
        VLLM_2 | {"model": "v4-flash"},
    ),
    Pasted(
        "form",
        """dsv4-fp4-b300-sglang:
  image: lmsysorg/sglang:v0.5.23-cu130
  model: deepseek-ai/DeepSeek-V4-Pro
  framework: sglang
  search-space:
  - {tp: 8, ep: 8, dp-attn: true, conc-start: 64, conc-end: 1024}
""",
        {"engine": "sglang:0.5.23", "model": "v4-pro", "dp": "8", "tp": "1", "ep": "8",
         "gpu": "b300"},
        unread="a GPU: b300, the only one that the text names there, is taken",
    ),
)  # fmt: skip
