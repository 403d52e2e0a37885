"""Flags of SGLang 0.5.23. Source: ``arg_groups/fields``, ``environ.py``."""

from dsv4kv.engines.flags import (
    GRAPHS,
    HOST,
    NOTHING,
    OWN_DRAFTS,
    PART,
    WEIGHTS,
    Meaning,
    Texts,
    as_is,
    cache_dtype,
    counted,
    find_drafts,
    flag,
    in_bytes,
    named,
    read_object,
    switch,
    switched,
)

_SGLANG_DRAFTS = {"DSPARK": 8}
"""Draft tokens that SGLang takes where none are given, the verified one among them: 7 + 1 of
DSpark, unless the checkpoint says otherwise, and four of EAGLE (``speculative_hook.py``)."""


def _sglang_drafts(text: str) -> Texts:
    tokens = _SGLANG_DRAFTS.get(text.upper(), 4)
    found = find_drafts(text)
    return found | {OWN_DRAFTS: str(tokens)} if found else {}


def _dspark_block(text: str) -> Texts:
    """A block of drafts is verified with the token before it."""
    found = counted("draft-tokens").of(text)
    return {name: str(int(count) + 1) for name, count in found.items()}


def _state_dtype(text: str) -> Texts:
    known = {"float32": "fp32", "bfloat16": "bf16"}
    return {"state": known.get(text.lower(), text.lower())}


def _gigabytes(text: str) -> Texts:
    """SGLang's decimal gigabytes; 0 is none."""
    size = counted("host-size").of(text)
    return {name: f"{int(count)}GB" for name, count in size.items() if int(count)}


def _hisparse(text: str) -> Texts:
    ratio = read_object(text).get("host_to_device_ratio")
    return {} if ratio is None else {"hisparse-ratio": in_bytes(ratio, 1, "entries")}


FLAGS = (
    flag("--model-path --model", "the model", as_is("model")),
    flag("--tp-size --tensor-parallel-size --tp", "ranks, replicas included", counted("tp")),
    flag("--pp-size --pipeline-parallel-size --pp", "stages", counted("pp")),
    flag("SGLANG_PP_LAYER_PARTITION", "layers of every stage", as_is("stage-layers")),
    flag("--dp-size --data-parallel-size --dp", "replicas", counted("dp")),
    switch("--enable-dp-attention", "replicas are ranks of one server",
            switched("dp-attention", "on")),
    flag("--ep-size --expert-parallel-size --ep", "spreads the experts", counted("ep")),
    flag("--context-length", "the longest request", counted("context")),
    flag("--max-running-requests", "concurrent requests of all replicas: the pool of windows",
          counted("request-limit")),
    flag("--chunked-prefill-size", "tokens in flight; the share of a GPU, if not given",
          counted("step-tokens")),
    flag("--mem-fraction-static", "share of a GPU for weights and cache",
          as_is("memory-fraction")),
    flag("--max-total-tokens", "full tokens at most", counted("kv-blocks")),
    flag("--page-size", "tokens of a page", counted("block-tokens")),
    flag("--swa-full-tokens-ratio", "window slots for a full token", as_is("window-ratio")),
    flag("--kv-cache-dtype", "bytes of an entry", Meaning(cache_dtype)),
    flag("--speculative-algorithm --speculative-algo", "windows of draft layers",
          Meaning(_sglang_drafts)),
    flag("--speculative-num-draft-tokens", "window slots of a running request",
          counted("draft-tokens")),
    flag("--speculative-dspark-block-size", "window slots of a running request",
          Meaning(_dspark_block)),
    switch("--disable-radix-cache", "no windows of cached prefixes",
            switched("prefix-cache", "off")),
    switch("--disable-overlap-schedule", "one chunk in flight", switched("overlap", "1")),
    switch("--enable-deepseek-v4-fp4-indexer", "indexer keys of 68 B, charged as 132 B",
            switched("indexer-format", "mxfp4")),
    flag("SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS",
          "window slots of a running request", switched("window-slots", "freed", "kept")),
    flag("SGLANG_DSV4_COMPRESS_STATE_DTYPE", "bytes of compressor states", Meaning(_state_dtype)),
    flag("SGLANG_OPT_USE_ONLINE_COMPRESS", "HCA states as a running softmax",
          switched("state", "online")),
    flag("--disaggregation-mode",
          "decode: no chunks, no prefixes in the pool of windows; prefill: no decode graphs; "
          "V4.1's own records on SM100", named("role")),
    flag("--disaggregation-decode-extra-slots",
          "requests that are received while others run", counted("extra-slots")),
    switch("--disaggregation-decode-enable-radix-cache",
            "prefixes on the decode side, which V4 has only with unified KV"),
    switch("--disaggregation-decode-enable-offload-kvcache",
            f"{HOST}: of the decode side, with a storage backend"),
    flag("--disaggregation-transfer-backend", "nothing: what carries the pages", NOTHING),
    switch("--enable-hierarchical-cache --enable-hicache",
            f"{HOST}: a copy of the GPU's pools", switched("host-tier", "hicache")),
    flag("--hicache-ratio", f"{HOST}: a multiple of the GPU's pools", as_is("host-ratio")),
    flag("--hicache-size", f"{HOST}, in GB of every rank; V4 refuses it", Meaning(_gigabytes)),
    flag("--hicache-mem-layout", "staging on the GPU with page_first", named("host-layout")),
    flag("--hicache-io-backend", "no staging on the GPU with direct",
          Meaning(lambda text: {"host-layout": "page_first_direct"} if text == "direct" else {})),
    flag("--hicache-write-policy", "nothing: when pages are copied to the host", NOTHING),
    flag("--hicache-storage-backend", "pages beyond the host's, which are not sized",
          named("host-storage")),
    flag("--hicache-storage-prefetch-policy", "nothing: how long a request waits", NOTHING),
    switch("--enable-lmcache", "LMCache's server keeps pages, which are not sized"),
    flag("--hicache-host-memory-mode", "buffer_only: 1.2 of the GPU's pools, as a passage"),
    flag("--hicache-host-memory-fraction", "0.8 is assumed where no ratio is given"),
    switch("--enable-hisparse", "CSA's entries in host memory, a part of them on the GPU",
            switched("hisparse", "on")),
    flag("--hisparse-config", "host_to_device_ratio: entries for one on the GPU, 2 unasked",
          Meaning(_hisparse)),
    switch("--enable-unified-memory", "pools that borrow from each other: refused by name",
            switched("unified-memory", "on")),
    flag("--dcp-size --decode-context-parallel-size", PART, counted("dcp")),
    flag("--attn-cp-size --attention-context-parallel-size", PART, counted("prefill-cp")),
    switch("--enable-prefill-cp", PART, switched("prefill-cp", "2")),
    flag("--swa-prefix-tails", "windows of cached prefixes: four a request are assumed"),
    flag("--dsv4-attn-backend", "uniform FP8 rows with trtllm, V4.1's with flashmla_mega",
          named("attention-backend")),
    switch("--enable-encoder-swa-bounded-replay",
            "windows leave the prefix cache: every request has its own",
            switched("window-slots", "own")),
    switch("--enable-decoder-swa-bounded-replay",
            "no hit covers a prompt's last 128 tokens", switched("bounded-replay", "on")),
    switch("--no-enable-decoder-swa-bounded-replay",
            "a hit may cover a prompt's last 128 tokens", switched("bounded-replay", "off")),
    flag("--moe-a2a-backend", "2 GiB more are kept for DeepEP; times of a replay with deepep",
          named("all-to-all")),
    switch("--enable-prefill-delayer", "nothing of sizes: prompts of a replay wait for all ranks",
            switched("delay-prompts", "on")),
    flag("--cuda-graph-max-bs --cuda-graph-max-bs-decode", GRAPHS),
    switch("--disable-cuda-graph", GRAPHS),
    flag("--cpu-offload-gb", WEIGHTS),
    flag("--quantization", WEIGHTS),
    switch("--enable-lora", WEIGHTS),
    flag("--speculative-num-steps", "nothing: only the draft tokens count", NOTHING),
    flag("--speculative-eagle-topk", "with 1, nothing", NOTHING),
    flag("SGLANG_DSV4_KV_LAYOUT", "bytes of an entry: v4 is assumed"),
    flag("SGLANG_HACK_FLASHMLA_BACKEND",
          "unified KV with unified_kv_triton, on AMD's GPUs: refused by name",
          Meaning(lambda x: {"unified-kv": "on"} if x == "unified_kv_triton" else {})),
    flag("SGLANG_DSV4_UNIFIED_KV_FP8", "nothing without unified_kv_triton", NOTHING),
    flag("SGLANG_SWA_EVICTION_INTERVAL", "window slots of a request: 128 is assumed"),
    flag("SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION", "bound of the indexer's logits"),
    flag("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "memory that is kept for all but the cache"),
)  # fmt: skip
"""In the order in which they are listed."""
