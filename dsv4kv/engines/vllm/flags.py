"""Flags of vLLM 0.33. Source: ``arg_utils.py``, ``envs.py``."""

from collections.abc import Mapping

from dsv4kv.engines.flags import (
    HOST,
    OWN_TIER,
    PART,
    SIMPLE,
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
from dsv4kv.errors import ConfigError


def _attention(text: str) -> Texts:
    found = read_object(text)
    texts = named("attention-backend").of(str(found.get("backend", "auto")))
    if str(found.get("use_fp4_indexer_cache", "")).lower() == "true":
        return texts | {"indexer-format": "mxfp4"}
    dtype = found.get("indexer_kv_dtype", "auto")
    return texts if dtype == "auto" else texts | {"indexer-format": str(dtype)}


def _speculation(text: str) -> Texts:
    found = read_object(text)
    texts = find_drafts(str(found.get("method", "")))
    tokens = found.get("num_speculative_tokens")
    return texts | ({"draft-tokens": str(tokens)} if isinstance(tokens, int) else {})


def _logits(text: str) -> Texts:
    return {name: f"{count}MiB" for name, count in counted("logits-limit").of(text).items()}


_OFFLOADED = {
    "OffloadingConnector": "native",
    "SimpleCPUOffloadConnector": "simple",
    "LMCacheMPConnector": "lmcache",
    "LMCacheConnectorV1": "lmcache-local",
}
"""vLLM's connectors that keep blocks in host memory."""
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _offloading_size(text: str) -> Texts:
    return {OWN_TIER: "native", "host-size": in_bytes(text, 2**30, "GiB")}


def _transfer(text: str) -> Texts:
    found = read_object(text)
    extra = found.get("kv_connector_extra_config")
    if found.get("kv_connector") == "MultiConnector" and isinstance(extra, dict):
        given = extra.get("connectors")
        listed = given if isinstance(given, list) else []
        parts = [each for each in listed if isinstance(each, dict)]
        return {name: value for each in parts for name, value in _connector(each).items()}
    return _connector(found)


def _connector(found: Mapping[str, object]) -> Texts:
    tier = _OFFLOADED.get(str(found.get("kv_connector")))
    if found.get("kv_connector") == "HiSparseConnector":
        return {"hisparse": "on"}
    if tier is None:
        role = _ROLES.get(str(found.get("kv_role")))
        return {"role": role} if role else {}
    extra = found.get("kv_connector_extra_config")
    size = extra.get("cpu_bytes_to_use") if isinstance(extra, dict) else None
    return {"host-tier": tier} | ({"host-size": in_bytes(size, 1, "bytes")} if size else {})


def _retention(text: str) -> Texts:
    dense = text.lower() in ("none", "null")
    return {"retention": "dense"} if dense else counted("retention").of(text)


_GRAPHS = "memory of CUDA graphs, as far as this version counts it before the cache"


def _compilation(text: str) -> Texts:
    try:
        found = read_object(text)
    except ConfigError:  # a level, or what a shell left of JSON without quotes
        return {}
    if str(found.get("cudagraph_mode", "")).upper() == "NONE":
        return {"graphs": "0"}
    sizes = found.get("cudagraph_capture_sizes")
    listed = [each for each in sizes if isinstance(each, int)] if isinstance(sizes, list) else []
    largest = found.get("max_cudagraph_capture_size") or max(listed, default=None)
    return {"graphs": str(largest)} if isinstance(largest, int) and largest >= 0 else {}


FLAGS = (
    flag("--model", "the model", as_is("model")),
    flag("--tensor-parallel-size -tp", "ranks of a replica", counted("tp")),
    flag("--pipeline-parallel-size -pp", "stages", counted("pp")),
    flag("VLLM_PP_LAYER_PARTITION", "layers of every stage", as_is("stage-layers")),
    flag("--data-parallel-size -dp", "replicas, each with its cache", counted("dp")),
    switch("--enable-expert-parallel -ep",
           "whole experts on every rank, instead of slices that may be padded",
           switched("expert-parallel", "on")),
    flag("--max-model-len", "the longest request", counted("context")),
    flag("--max-num-seqs", "concurrent requests of a replica", counted("request-limit")),
    flag("--max-num-batched-tokens",
         "the reserve in flight of every request, twice with async scheduling",
         counted("step-tokens")),
    flag("--gpu-memory-utilization", "share of a GPU that is used", as_is("memory-fraction")),
    flag("--kv-cache-memory-bytes", "memory for KV, whatever weights and utilization leave",
         counted("kv-memory")),
    flag("--num-gpu-blocks-override", "blocks, whatever fits", counted("kv-blocks")),
    flag("--block-size", "tokens of a block", counted("block-tokens")),
    flag("--kv-cache-dtype", "bytes of an entry", Meaning(cache_dtype)),
    flag("--speculative-config -sc", "windows of draft layers", Meaning(_speculation)),
    flag("--attention-config -ac", "bytes of an indexer key", Meaning(_attention)),
    switch("--async-scheduling", "two steps in flight; before 0.27 one is counted",
           switched("overlap", "2")),
    switch("--no-async-scheduling", "one step in flight", switched("overlap", "1")),
    switch("--enable-prefix-caching", "nothing of vLLM's size", switched("prefix-cache", "on")),
    switch("--no-enable-prefix-caching", "nothing of vLLM's size",
           switched("prefix-cache", "off")),
    flag("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "the indexer's logits are cut to it",
         Meaning(_logits, "logits-limit")),
    flag("--attention-backend",
         "plain rows of 512 or 1,024 B with FLASHINFER_MLA_SPARSE_DSV4 on SM100",
         named("attention-backend")),
    flag("--kv-offloading-size", f"{HOST}: GiB of all ranks of a replica",
         Meaning(_offloading_size)),
    flag("--kv-offloading-backend", f"{HOST}: native unless given",
         Meaning(lambda text: {OWN_TIER: text})),
    flag("VLLM_USE_SIMPLE_KV_OFFLOAD", f"{HOST}: blocks of every rank", switched(SIMPLE, "on")),
    flag("--kv-transfer-config", f"{HOST}; or what a prompt sends to the decode side",
         Meaning(_transfer)),
    flag("LMCACHE_CHUNK_SIZE", "tokens of LMCache's chunks", counted("host-chunk")),
    flag("LMCACHE_MAX_LOCAL_CPU_SIZE", "memory of LMCache in vLLM's process, GiB",
         Meaning(lambda text: {"host-size": in_bytes(text, 2**30, "GiB")})),
    flag("LMCACHE_MAX_LOCAL_DISK_SIZE", "disk beyond LMCache's memory, GiB"),
    flag("LMCACHE_LOCAL_DISK", "where LMCache's disk is"),
    flag("LMCACHE_CONFIG_FILE", "a file of LMCache's settings, which is not read"),
    flag("--prefix-cache-retention-interval", f"which windows stay cached in {HOST}",
         Meaning(_retention)),
    flag("--prefix-match-unit", "where hits end"),
    switch("--swa-bounded-replay", "V4.1's windows leave the prefix cache",
           switched("bounded-replay", "on")),
    switch("--no-swa-bounded-replay", "V4.1's windows are in the prefix cache",
           switched("bounded-replay", "off")),
    flag("--engram-config", "V4.1's tables, in host memory by default"),
    flag("--decode-context-parallel-size -dcp", PART, counted("dcp")),
    flag("--prefill-context-parallel-size -pcp", PART, counted("prefill-cp")),
    flag("--cpu-offload-gb --offload-group-size --offload-num-in-group", WEIGHTS),
    flag("--quantization -q", WEIGHTS),
    flag("--num-redundant-experts", WEIGHTS),
    switch("--enable-eplb", WEIGHTS),
    switch("--enable-lora", WEIGHTS),
    flag("--hf-overrides", "may change the model itself"),
    flag("--performance-mode", "throughput doubles batched tokens and requests"),
    flag("--all2all-backend",
         "256 batched tokens with DeepEP's low latency; its buffers; times of a replay",
         named("all-to-all")),
    flag("--compilation-config -cc", _GRAPHS, Meaning(_compilation)),
    flag("--max-cudagraph-capture-size", _GRAPHS, counted("graphs")),
    switch("--enforce-eager", _GRAPHS, switched("graphs", "0")),
    flag("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "no estimate of CUDA graphs with 0",
         Meaning(lambda text: {"graphs": "0"} if text == "0" else {})),
    switch("--enable-dbo", "half batches, each with buffers of its own"),
    flag("VLLM_USE_V2_MODEL_RUNNER", "steps in flight with pipeline stages"),
)  # fmt: skip
"""In the order in which they are listed."""
