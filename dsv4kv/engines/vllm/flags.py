"""Flags of vLLM 0.33. Source: ``arg_utils.py``, ``envs.py``."""

from collections.abc import Mapping

from dsv4kv.engines import flags as fl
from dsv4kv.errors import ConfigError


def _attention(text: str) -> fl.Texts:
    found = fl.read_object(text)
    texts = fl.named("attention-backend").of(str(found.get("backend", "auto")))
    if str(found.get("use_fp4_indexer_cache", "")).lower() == "true":
        return texts | {"indexer-format": "mxfp4"}
    dtype = found.get("indexer_kv_dtype", "auto")
    return texts if dtype == "auto" else texts | {"indexer-format": str(dtype)}


def _speculation(text: str) -> fl.Texts:
    found = fl.read_object(text)
    texts = fl.find_drafts(str(found.get("method", "")))
    tokens = found.get("num_speculative_tokens")
    return texts | ({"draft-tokens": str(tokens)} if isinstance(tokens, int) else {})


def _logits(text: str) -> fl.Texts:
    return {name: f"{count}MiB" for name, count in fl.counted("logits-limit").of(text).items()}


_OFFLOADED = {
    "OffloadingConnector": "native",
    "SimpleCPUOffloadConnector": "simple",
    "LMCacheMPConnector": "lmcache",
    "LMCacheConnectorV1": "lmcache-local",
}
"""vLLM's connectors that keep blocks in host memory."""
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _offloading_size(text: str) -> fl.Texts:
    return {fl.OWN_TIER: "native", "host-size": fl.in_bytes(text, 2**30, "GiB")}


def _transfer(text: str) -> fl.Texts:
    found = fl.read_object(text)
    extra = found.get("kv_connector_extra_config")
    if found.get("kv_connector") == "MultiConnector" and isinstance(extra, dict):
        given = extra.get("connectors")
        listed = given if isinstance(given, list) else []
        parts = [each for each in listed if isinstance(each, dict)]
        return {name: value for each in parts for name, value in _connector(each).items()}
    return _connector(found)


def _connector(found: Mapping[str, object]) -> fl.Texts:
    tier = _OFFLOADED.get(str(found.get("kv_connector")))
    if found.get("kv_connector") == "HiSparseConnector":
        return {"hisparse": "on"}
    if tier is None:
        role = _ROLES.get(str(found.get("kv_role")))
        return {"role": role} if role else {}
    extra = found.get("kv_connector_extra_config")
    size = extra.get("cpu_bytes_to_use") if isinstance(extra, dict) else None
    return {"host-tier": tier} | ({"host-size": fl.in_bytes(size, 1, "bytes")} if size else {})


def _retention(text: str) -> fl.Texts:
    dense = text.lower() in ("none", "null")
    return {"retention": "dense"} if dense else fl.counted("retention").of(text)


_GRAPHS = "memory of CUDA graphs, as far as this version counts it before the cache"


def _compilation(text: str) -> fl.Texts:
    try:
        found = fl.read_object(text)
    except ConfigError:  # a level, or what a shell left of JSON without quotes
        return {}
    if str(found.get("cudagraph_mode", "")).upper() == "NONE":
        return {"graphs": "0"}
    sizes = found.get("cudagraph_capture_sizes")
    listed = [each for each in sizes if isinstance(each, int)] if isinstance(sizes, list) else []
    largest = found.get("max_cudagraph_capture_size") or max(listed, default=None)
    return {"graphs": str(largest)} if isinstance(largest, int) and largest >= 0 else {}


FLAGS = (
    fl.flag("--model", "the model", fl.as_is("model")),
    fl.flag("--tensor-parallel-size -tp", "ranks of a replica", fl.counted("tp")),
    fl.flag("--pipeline-parallel-size -pp", "stages", fl.counted("pp")),
    fl.flag("VLLM_PP_LAYER_PARTITION", "layers of every stage", fl.as_is("stage-layers")),
    fl.flag("--data-parallel-size -dp", "replicas, each with its cache", fl.counted("dp")),
    fl.switch("--enable-expert-parallel -ep",
              "whole experts on every rank, instead of slices that may be padded",
              fl.switched("expert-parallel", "on")),
    fl.flag("--max-model-len", "the longest request", fl.counted("context")),
    fl.flag("--max-num-seqs", "concurrent requests of a replica", fl.counted("request-limit")),
    fl.flag("--max-num-batched-tokens",
            "the reserve in flight of every request, twice with async scheduling",
            fl.counted("step-tokens")),
    fl.flag("--gpu-memory-utilization", "share of a GPU that is used",
            fl.as_is("memory-fraction")),
    fl.flag("--kv-cache-memory-bytes", "memory for KV, whatever weights and utilization leave",
            fl.counted("kv-memory")),
    fl.flag("--num-gpu-blocks-override", "blocks, whatever fits", fl.counted("kv-blocks")),
    fl.flag("--block-size", "tokens of a block", fl.counted("block-tokens")),
    fl.flag("--kv-cache-dtype", "bytes of an entry", fl.Meaning(fl.cache_dtype)),
    fl.flag("--speculative-config -sc", "windows of draft layers", fl.Meaning(_speculation)),
    fl.flag("--attention-config -ac", "bytes of an indexer key", fl.Meaning(_attention)),
    fl.switch("--async-scheduling", "two steps in flight; before 0.27 one is counted",
              fl.switched("overlap", "2")),
    fl.switch("--no-async-scheduling", "one step in flight", fl.switched("overlap", "1")),
    fl.switch("--enable-prefix-caching", "nothing of vLLM's size",
              fl.switched("prefix-cache", "on")),
    fl.switch("--no-enable-prefix-caching", "nothing of vLLM's size",
              fl.switched("prefix-cache", "off")),
    fl.flag("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "the indexer's logits are cut to it",
            fl.Meaning(_logits, "logits-limit")),
    fl.flag("--attention-backend",
            "plain rows of 512 or 1,024 B with FLASHINFER_MLA_SPARSE_DSV4 on SM100",
            fl.named("attention-backend")),
    fl.flag("--kv-offloading-size", f"{fl.HOST}: GiB of all ranks of a replica",
            fl.Meaning(_offloading_size)),
    fl.flag("--kv-offloading-backend", f"{fl.HOST}: native unless given",
            fl.Meaning(lambda text: {fl.OWN_TIER: text})),
    fl.flag("VLLM_USE_SIMPLE_KV_OFFLOAD", f"{fl.HOST}: blocks of every rank",
            fl.switched(fl.SIMPLE, "on")),
    fl.flag("--kv-transfer-config", f"{fl.HOST}; or what a prompt sends to the decode side",
            fl.Meaning(_transfer)),
    fl.flag("LMCACHE_CHUNK_SIZE", "tokens of LMCache's chunks", fl.counted("host-chunk")),
    fl.flag("LMCACHE_MAX_LOCAL_CPU_SIZE", "memory of LMCache in vLLM's process, GiB",
            fl.Meaning(lambda text: {"host-size": fl.in_bytes(text, 2**30, "GiB")})),
    fl.flag("LMCACHE_MAX_LOCAL_DISK_SIZE", "disk beyond LMCache's memory, GiB"),
    fl.flag("LMCACHE_LOCAL_DISK", "where LMCache's disk is"),
    fl.flag("LMCACHE_CONFIG_FILE", "a file of LMCache's settings, which is not read"),
    fl.flag("--prefix-cache-retention-interval", f"which windows stay cached in {fl.HOST}",
            fl.Meaning(_retention)),
    fl.flag("--prefix-match-unit", "where hits end"),
    fl.switch("--swa-bounded-replay", "V4.1's windows leave the prefix cache",
              fl.switched("bounded-replay", "on")),
    fl.switch("--no-swa-bounded-replay", "V4.1's windows are in the prefix cache",
              fl.switched("bounded-replay", "off")),
    fl.flag("--engram-config", "V4.1's tables, in host memory by default"),
    fl.flag("--decode-context-parallel-size -dcp", fl.PART, fl.counted("dcp")),
    fl.flag("--prefill-context-parallel-size -pcp", fl.PART, fl.counted("prefill-cp")),
    fl.flag("--cpu-offload-gb --offload-group-size --offload-num-in-group", fl.WEIGHTS),
    fl.flag("--quantization -q", fl.WEIGHTS),
    fl.flag("--num-redundant-experts", fl.WEIGHTS),
    fl.switch("--enable-eplb", fl.WEIGHTS),
    fl.switch("--enable-lora", fl.WEIGHTS),
    fl.flag("--hf-overrides", "may change the model itself"),
    fl.flag("--performance-mode", "throughput doubles batched tokens and requests"),
    fl.flag("--all2all-backend",
            "256 batched tokens with DeepEP's low latency; its buffers; times of a replay",
            fl.named("all-to-all")),
    fl.flag("--compilation-config -cc", _GRAPHS, fl.Meaning(_compilation)),
    fl.flag("--max-cudagraph-capture-size", _GRAPHS, fl.counted("graphs")),
    fl.switch("--enforce-eager", _GRAPHS, fl.switched("graphs", "0")),
    fl.flag("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "no estimate of CUDA graphs with 0",
            fl.Meaning(lambda text: {"graphs": "0"} if text == "0" else {})),
    fl.switch("--enable-dbo", "half batches, each with buffers of its own"),
    fl.flag("VLLM_USE_V2_MODEL_RUNNER", "steps in flight with pipeline stages"),
)  # fmt: skip
"""In the order in which they are listed."""
