"""Flags of SGLang 0.5.23. Source: ``arg_groups/fields``, ``environ.py``."""

from dsv4kv.choices import choose
from dsv4kv.engines import flags as fl

_SGLANG_DRAFTS = {"DSPARK": 8}
"""Draft tokens that SGLang takes where none are given, the verified one among them: 7 + 1 of
DSpark, unless the checkpoint says otherwise, and four of EAGLE (``speculative_hook.py``)."""


def _sglang_drafts(text: str) -> fl.Texts:
    tokens = _SGLANG_DRAFTS.get(text.upper(), 4)
    found = fl.find_drafts(text)
    return found | {fl.OWN_DRAFTS: str(tokens)} if found else {}


def _dspark_block(text: str) -> fl.Texts:
    """A block of drafts is verified with the token before it."""
    found = fl.counted("draft-tokens").of(text)
    return {name: str(int(count) + 1) for name, count in found.items()}


def _state_dtype(text: str) -> fl.Texts:
    known = {"float32": "fp32", "fp32": "fp32", "bfloat16": "bf16", "bf16": "bf16"}
    return {"state": choose(known, text.strip().lower(), "a state of SGLang's compressors")}


def _gigabytes(text: str) -> fl.Texts:
    """SGLang's decimal gigabytes; 0 is none."""
    size = fl.counted("host-size").of(text)
    return {name: f"{int(count)}GB" for name, count in size.items() if int(count)}


def _hisparse(text: str) -> fl.Texts:
    ratio = fl.read_object(text).get("host_to_device_ratio")
    return {} if ratio is None else {"hisparse-ratio": fl.in_bytes(ratio, 1, "entries")}


FLAGS = (
    fl.flag("--model-path --model", "the model", fl.as_is("model")),
    fl.flag("--tp-size --tensor-parallel-size --tp", "ranks, replicas included", fl.counted("tp")),
    fl.flag("--pp-size --pipeline-parallel-size --pp", "stages", fl.counted("pp")),
    fl.flag("SGLANG_PP_LAYER_PARTITION", "layers of every stage", fl.as_is("stage-layers")),
    fl.flag("--dp-size --data-parallel-size --dp", "replicas", fl.counted("dp")),
    fl.switch("--enable-dp-attention", "replicas are ranks of one server",
              fl.switched("dp-attention", "on")),
    fl.flag("--ep-size --expert-parallel-size --ep", "spreads the experts", fl.counted("ep")),
    fl.flag("--context-length", "the longest request", fl.counted("context")),
    fl.flag("--max-running-requests", "concurrent requests of all replicas: the pool of windows",
            fl.counted("request-limit")),
    fl.flag("--chunked-prefill-size", "tokens in flight; the share of a GPU, if not given",
            fl.counted("step-tokens")),
    fl.flag("--mem-fraction-static", "share of a GPU for weights and cache",
            fl.as_is("memory-fraction")),
    fl.flag("--max-total-tokens", "full tokens at most", fl.counted("kv-blocks")),
    fl.flag("--page-size", "tokens of a page", fl.counted("block-tokens")),
    fl.flag("--swa-full-tokens-ratio", "window slots for a full token", fl.as_is("window-ratio")),
    fl.flag("--kv-cache-dtype", "bytes of an entry", fl.Meaning(fl.cache_dtype)),
    fl.flag("--speculative-algorithm --speculative-algo", "windows of draft layers",
            fl.Meaning(_sglang_drafts)),
    fl.flag("--speculative-num-draft-tokens", "window slots of a running request",
            fl.counted("draft-tokens")),
    fl.flag("--speculative-dspark-block-size", "window slots of a running request",
            fl.Meaning(_dspark_block)),
    fl.switch("--disable-radix-cache", "no windows of cached prefixes",
              fl.switched("prefix-cache", "off")),
    fl.switch("--disable-overlap-schedule", "one chunk in flight", fl.switched("overlap", "1")),
    fl.switch("--enable-deepseek-v4-fp4-indexer", "indexer keys of 68 B, charged as 132 B",
              fl.switched("indexer-format", "mxfp4")),
    fl.flag("SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS",
            "window slots of a running request", fl.switched("window-slots", "freed", "kept")),
    fl.flag("SGLANG_DSV4_COMPRESS_STATE_DTYPE", "bytes of compressor states",
            fl.Meaning(_state_dtype)),
    fl.flag("SGLANG_OPT_USE_ONLINE_COMPRESS", "HCA states as a running softmax",
            fl.switched("state", "online")),
    fl.flag("--disaggregation-mode",
            "decode: no chunks, no prefixes in the pool of windows; prefill: no decode graphs; "
            "V4.1's own records on SM100", fl.named("role")),
    fl.flag("--disaggregation-decode-extra-slots",
            "requests that are received while others run", fl.counted("extra-slots")),
    fl.switch("--disaggregation-decode-enable-radix-cache",
              "prefixes on the decode side, which V4 has only with unified KV"),
    fl.switch("--disaggregation-decode-enable-offload-kvcache",
              f"{fl.HOST}: of the decode side, with a storage backend"),
    fl.flag("--disaggregation-transfer-backend", "nothing: what carries the pages", fl.NOTHING),
    fl.switch("--enable-hierarchical-cache --enable-hicache",
              f"{fl.HOST}: a copy of the GPU's pools", fl.switched("host-tier", "hicache")),
    fl.flag("--hicache-ratio", f"{fl.HOST}: a multiple of the GPU's pools",
            fl.as_is("host-ratio")),
    fl.flag("--hicache-size", f"{fl.HOST}, in GB of every rank; V4 refuses it",
            fl.Meaning(_gigabytes)),
    fl.flag("--hicache-mem-layout", "staging on the GPU with page_first", fl.named("host-layout")),
    fl.flag("--hicache-io-backend", "no staging on the GPU with direct",
            fl.Meaning(lambda x: {"host-layout": "page_first_direct"} if x == "direct" else {})),
    fl.flag("--hicache-write-policy", "nothing: when pages are copied to the host", fl.NOTHING),
    fl.flag("--hicache-storage-backend", "pages beyond the host's, which are not sized",
            fl.named("host-storage")),
    fl.flag("--hicache-storage-prefetch-policy", "nothing: how long a request waits", fl.NOTHING),
    fl.switch("--enable-lmcache", "LMCache's server keeps pages, which are not sized"),
    fl.flag("--hicache-host-memory-mode", "buffer_only: 1.2 of the GPU's pools, as a passage"),
    fl.flag("--hicache-host-memory-fraction", "0.8 is assumed where no ratio is given"),
    fl.switch("--enable-hisparse", "CSA's entries in host memory, a part of them on the GPU",
              fl.switched("hisparse", "on")),
    fl.flag("--hisparse-config", "host_to_device_ratio: entries for one on the GPU, 2 unasked",
            fl.Meaning(_hisparse)),
    fl.switch("--enable-unified-memory", "pools that borrow from each other: refused by name",
              fl.switched("unified-memory", "on")),
    fl.flag("--dcp-size --decode-context-parallel-size", fl.PART, fl.counted("dcp")),
    fl.flag("--attn-cp-size --attention-context-parallel-size", fl.PART, fl.counted("prefill-cp")),
    fl.switch("--enable-prefill-cp", fl.PART, fl.switched("prefill-cp", "2")),
    fl.flag("--swa-prefix-tails", "windows of cached prefixes: four a request are assumed"),
    fl.flag("--dsv4-attn-backend", "uniform FP8 rows with trtllm, V4.1's with flashmla_mega",
            fl.named("attention-backend")),
    fl.switch("--enable-encoder-swa-bounded-replay",
              "windows leave the prefix cache: every request has its own",
              fl.switched("window-slots", "own")),
    fl.switch("--enable-decoder-swa-bounded-replay",
              "no hit covers a prompt's last 128 tokens", fl.switched("bounded-replay", "on")),
    fl.switch("--no-enable-decoder-swa-bounded-replay",
              "a hit may cover a prompt's last 128 tokens", fl.switched("bounded-replay", "off")),
    fl.flag("--moe-a2a-backend", "2 GiB more are kept for DeepEP; times of a replay with deepep",
            fl.named("all-to-all")),
    fl.switch("--enable-prefill-delayer",
              "nothing of sizes: prompts of a replay wait for all ranks",
            fl.switched("delay-prompts", "on")),
    fl.flag("--cuda-graph-max-bs --cuda-graph-max-bs-decode", fl.GRAPHS),
    fl.switch("--disable-cuda-graph", fl.GRAPHS),
    fl.flag("--cpu-offload-gb", fl.WEIGHTS),
    fl.flag("--quantization", fl.WEIGHTS),
    fl.switch("--enable-lora", fl.WEIGHTS),
    fl.flag("--speculative-num-steps", "nothing: only the draft tokens count", fl.NOTHING),
    fl.flag("--speculative-eagle-topk", "with 1, nothing", fl.NOTHING),
    fl.flag("SGLANG_DSV4_KV_LAYOUT", "bytes of an entry: v4 is assumed"),
    fl.flag("SGLANG_HACK_FLASHMLA_BACKEND",
            "unified KV with unified_kv_triton, on AMD's GPUs: refused by name",
            fl.Meaning(lambda x: {"unified-kv": "on"} if x == "unified_kv_triton" else {})),
    fl.flag("SGLANG_DSV4_UNIFIED_KV_FP8", "nothing without unified_kv_triton", fl.NOTHING),
    fl.flag("SGLANG_SWA_EVICTION_INTERVAL", "window slots of a request: 128 is assumed"),
    fl.flag("SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION", "bound of the indexer's logits"),
    fl.flag("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "memory that is kept for all but the cache"),
)  # fmt: skip
"""In the order in which they are listed."""
