"""vLLM: the versions that are sized, the rules by which 0.33 reuses prefixes, and its flags."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dsv4kv.engines import flags as fl
from dsv4kv.engines.rule import EVERYWHERE, Family, Launch, Limit, Policy, Retention, Variant
from dsv4kv.errors import ConfigError

Grouping = Literal["tuples", "patterns"]
Packing = Literal["tuples", "slots", "widest"]


@dataclass(frozen=True)
class Release:
    """A range of versions, called after the newest."""

    newest: str
    oldest: str
    grouping: Grouping = "tuples"  # of windows: ``patterns`` from 0.29
    packing: Packing = "slots"  # what makes the bytes of a block
    # a request's need is weighted by each group's bytes, against the full group's, and window
    # pages are padded to context pages; otherwise its blocks are counted
    weighted: bool = True
    # every concurrent batch has its tokens in flight; before, one step's are counted, with async
    # scheduling too (logs of 0.23 to 0.26)
    batches_counted: bool = True
    one_line: bool = False  # tokens and concurrency are logged in one line
    null_block: bool = False  # the check at start keeps one block back
    seen_in_logs: bool = False
    kinds: tuple[str, ...] = ("v4",)  # generations of models it serves
    largest_tokens: int = 8192  # ``max_num_batched_tokens`` on a GPU of 160 GiB or more
    small_gb10: bool = False  # a DGX Spark counts as a small GPU, whatever its memory
    overlap_stages: bool = False  # with pipeline stages, too, a step is scheduled while others run
    counts_graphs: bool = False  # an estimate of CUDA graphs is taken before the cache is sized
    bounds_scores: bool = False  # V4.1's indexer scores are bounded in the step that is profiled
    sm100_formats: bool = False  # V4.1 has records of its own on SM100

    @property
    def half_keys(self) -> bool:
        """Whether MXFP4 keys fill the first half of FP8's bytes (0.23's ``DeepseekV4Indexer``)."""
        return self.grouping == "tuples"


_V0_27 = Release("0.27", "0.27", packing="widest", weighted=False)
_V0_28 = replace(
    _V0_27, newest="0.28", oldest="0.28", one_line=True, largest_tokens=16_384, overlap_stages=True
)
_V0_30 = replace(
    _V0_28,
    newest="0.30",
    oldest="0.29",
    grouping="patterns",
    null_block=True,
    seen_in_logs=True,
    kinds=("v4", "v41", "flat"),
    small_gb10=True,
)
RELEASES = (
    Release("0.22", "0.20", packing="tuples", batches_counted=False, seen_in_logs=True,
            counts_graphs=True),
    Release("0.25", "0.23", batches_counted=False, counts_graphs=True),
    Release("0.26", "0.26", batches_counted=False, seen_in_logs=True),
    Release("0.26.1", "0.26.1", seen_in_logs=True),
    _V0_27,
    _V0_28,
    _V0_30,
    replace(_V0_30, newest="0.33", oldest="0.31", bounds_scores=True, sm100_formats=True),
)  # fmt: skip

_POLICY = Policy("hashed", finds_scheduled=True, writes_evicted=False)
_MORE_BLOCKS = {
    "evicted_block": "--gpu-memory-utilization",
    "alignment": "a smaller --block-size",
}
_FEWER = "--prefix-cache-retention-interval 0; more memory"
_SPARSE = "--prefix-cache-retention-interval 4096 or 0"
_ONE_GROUP = Variant(
    "full blocks, one group",
    "vllm:0.33",
    default_for=("flat",),
    drafts=("none", "dspark", "mtp", "mtp+connector"),
    policy=_POLICY,
    remedies=_MORE_BLOCKS,
)
_V4 = replace(_ONE_GROUP, kinds=("v4",), default_for=("v4",), groups=True)


def _every(interval: int | None, explains: str, retention: Retention, **remedies: str) -> Variant:
    setting = f"prefix_cache_retention_interval={interval}"
    own = replace(_V4, explains=explains, setting=setting, flags={"retention": interval})
    return replace(own, retention=retention, remedies=_MORE_BLOCKS | remedies)


RULES = {
    "vllm": _ONE_GROUP,
    "vllm-ascend": replace(
        _ONE_GROUP,
        explains="on Ascend: hits of 32 blocks, 16,384 tokens for --block-size 128",
        kinds=("v4",),
        default_for=(),
        drafts=("none",),
        policy=replace(_POLICY, hit_blocks=32),
        block_tokens=512,
        remedies=_MORE_BLOCKS
        | {"no_checkpoint": "--block-size 32 (cache.block_tokens=128) hits at 4,096 tokens"},
    ),
    "vllm-v4:dense": _every(
        None, "windows and states cached at every block", EVERYWHERE,
        evicted_block=_SPARSE, evicted_checkpoint=_SPARSE,
    ),
    "vllm-v4:4096": _every(
        4096, "… at every 4,096 tokens, ends and junctions",
        Retention(4096, ends=True),
        evicted_block=_FEWER, evicted_checkpoint=_FEWER,
        no_checkpoint="try another --prefix-cache-retention-interval",
    ),
    "vllm-v4:semantic": _every(
        0, "… only at ends of prompts and junctions", Retention(ends=True),
        evicted_checkpoint="--gpu-memory-utilization",
        no_checkpoint="--prefix-cache-retention-interval 4096",
    ),
    "vllm-v41": replace(
        _V4,
        explains="V4.1: windows are never kept, 128 tokens of a hit are computed again "
        "(vLLM's default)",
        setting="--swa-bounded-replay",
        kinds=("v41",),
        default_for=("v41",),
        drafts=("none", "dspark"),
        policy=replace(_POLICY, replays=True),
        block_tokens=128,
        hopper_block_tokens=64,
        remedies=_MORE_BLOCKS
        | {"replay": "--no-swa-bounded-replay keeps windows instead; longer shared prefixes"},
    ),
}  # fmt: skip

_HYBRID = (
    "DCP with hybrid KV cache layouts only supports full-attention, Mamba, and replicated draft "
    "groups"
)
_PCP = "PCP only supports full attention and replicated draft groups."
_LIMITS = (  # of 0.33: v1/core/kv_cache_coordinator.py, v1/hisparse/layout.py
    Limit("dcp", ("v4", "v41"), _HYBRID),
    Limit("dcp", ("flat",)),
    Limit("prefill_cp", ("v4",), _PCP),
    Limit("prefill_cp", ("v41", "flat")),
    Limit("hisparse", ("v4", "v41"), "HiSparse does not support DeepSeek V4."),
    Limit("hisparse", ("flat",)),
)

# ---- flags. Source: 0.33, ``arg_utils.py``, ``envs.py``.


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
    fl.flag("--tensor-parallel-size -tp", "ranks of a replica", "tp"),
    fl.flag("--pipeline-parallel-size -pp", "stages", "pp"),
    fl.flag("VLLM_PP_LAYER_PARTITION", "layers of every stage", fl.as_is("stage-layers")),
    fl.flag("--data-parallel-size -dp", "replicas, each with its cache", "dp"),
    fl.switch("--enable-expert-parallel -ep",
              "whole experts on every rank, instead of slices that may be padded",
              fl.switched("expert-parallel", "on")),
    fl.flag("--max-model-len", "the longest request", "context"),
    fl.flag("--max-num-seqs", "concurrent requests of a replica", "request-limit"),
    fl.flag("--max-num-batched-tokens",
            "the reserve in flight of every request, twice with async scheduling", "step-tokens"),
    fl.flag("--gpu-memory-utilization", "share of a GPU that is used",
            fl.as_is("memory-fraction")),
    fl.flag("--kv-cache-memory-bytes", "memory for KV, whatever weights and utilization leave",
            "kv-memory"),
    fl.flag("--num-gpu-blocks-override", "blocks, whatever fits", "kv-blocks"),
    fl.flag("--block-size", "tokens of a block", "block-tokens"),
    fl.flag("--kv-cache-dtype", "bytes of an entry", fl.cache_dtype),
    fl.flag("--speculative-config -sc", "windows of draft layers", _speculation),
    fl.flag("--attention-config -ac", "bytes of an indexer key", _attention),
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
    fl.flag("--kv-offloading-size", f"{fl.HOST}: GiB of all ranks of a replica", _offloading_size),
    fl.flag("--kv-offloading-backend", f"{fl.HOST}: native unless given",
            lambda text: {fl.OWN_TIER: text}),
    fl.flag("VLLM_USE_SIMPLE_KV_OFFLOAD", f"{fl.HOST}: blocks of every rank",
            fl.switched(fl.SIMPLE, "on")),
    fl.flag("--kv-transfer-config", f"{fl.HOST}; or what a prompt sends to the decode side",
            _transfer),
    fl.flag("LMCACHE_CHUNK_SIZE", "tokens of LMCache's chunks", "host-chunk"),
    fl.flag("LMCACHE_MAX_LOCAL_CPU_SIZE", "memory of LMCache in vLLM's process, GiB",
            lambda text: {"host-size": fl.in_bytes(text, 2**30, "GiB")}),
    fl.flag("LMCACHE_MAX_LOCAL_DISK_SIZE", "disk beyond LMCache's memory, GiB"),
    fl.flag("LMCACHE_LOCAL_DISK", "where LMCache's disk is"),
    fl.flag("LMCACHE_CONFIG_FILE", "a file of LMCache's settings, which is not read"),
    fl.flag("--prefix-cache-retention-interval", f"which windows stay cached in {fl.HOST}",
            _retention),
    fl.flag("--prefix-match-unit", "where hits end"),
    fl.switch("--swa-bounded-replay", "V4.1's windows leave the prefix cache",
              fl.switched("bounded-replay", "on")),
    fl.switch("--no-swa-bounded-replay", "V4.1's windows are in the prefix cache",
              fl.switched("bounded-replay", "off")),
    fl.flag("--engram-config", "V4.1's tables, in host memory by default"),
    fl.flag("--decode-context-parallel-size -dcp", fl.PART, "dcp"),
    fl.flag("--prefill-context-parallel-size -pcp", fl.PART, "prefill-cp"),
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
    fl.flag("--compilation-config -cc", _GRAPHS, _compilation),
    fl.flag("--max-cudagraph-capture-size", _GRAPHS, "graphs"),
    fl.switch("--enforce-eager", _GRAPHS, fl.switched("graphs", "0")),
    fl.flag("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "no estimate of CUDA graphs with 0",
            lambda text: {"graphs": "0"} if text == "0" else {}),
    fl.switch("--enable-dbo", "half batches, each with buffers of its own"),
    fl.flag("VLLM_USE_V2_MODEL_RUNNER", "steps in flight with pipeline stages"),
)  # fmt: skip


FAMILY = Family(
    "vllm",
    "vLLM",
    "sizes:VllmEngine",
    RELEASES,
    RULES,
    {"retention": 0},
    Launch(
        words=(
            ("vllm", "serve"),
            *(("vllm", "bench", name) for name in ("throughput", "latency")),
            ("vllm.entrypoints.cli.main", "serve"),
            ("vllm.entrypoints.openai.api_server",),
            ("dynamo.vllm",),
        ),
        images=("vllm",),
        program="vllm serve",
        arguments="{model} --tensor-parallel-size {tp}",
        stages="--pipeline-parallel-size {pp}",
        replicas="--data-parallel-size {dp} --enable-expert-parallel",
        drafts='--speculative-config \'{{"method": "mtp", "num_speculative_tokens": {count}}}\'',
        written={
            "indexer_format=mxfp4": "--attention-config '{{\"use_fp4_indexer_cache\": true}}'",
            "host_tier=native": "--kv-offloading-size {host_gib:g}",
        },
        role='--kv-transfer-config \'{{"kv_connector": "NixlConnector", "kv_role": "kv_both"}}\'',
        shortens=True,
    ),
    limits=_LIMITS,
    host_tiers={
        "native": "vLLM's OffloadingConnector",
        "simple": "vLLM's SimpleCPUOffloadConnector",
        "lmcache": "LMCache's server, with vLLM",
        "lmcache-local": "LMCache in vLLM's process",
    },
    sends="as vLLM 0.33 sends them by NIXL",
    log_mark="non-default args",
    flags=FLAGS,
)
