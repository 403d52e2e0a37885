"""Flags and variables of engines that change sizes, and what of ours they mean.

One registry: the options of ``budget``, ``--command``, the advice and the docs read it. A flag
whose input is empty changes sizes in a way that no answer counts; its text says which.
Sources: vLLM 0.33 (``arg_utils.py``, ``envs.py``), SGLang 0.5.23 (``arg_groups/fields``,
``environ.py``), TensorRT-LLM (``trtllm-serve``).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from dsv4kv.errors import ConfigError

Texts = dict[str, str]
"""Values as written, by the option names of our inputs."""
_SCALE = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SCALE |= {letter.upper(): 2 ** (10 * power) for power, letter in enumerate("kmgt", 1)}
_NUMBER = re.compile(r"(-?\d[\d_,]{0,30}(?:\.\d{1,12})?)\s*([kmgtKMGT]?)(?:i?B)?")
_OFF = ("false", "0", "no", "off", "")


@dataclass(frozen=True)
class Meaning:
    """What of ours a value means.

    Attributes:
        of: Reads a value; raises ``ConfigError``.
        input: The one input that takes a plain value; empty where there is none or several.
    """

    of: Callable[[str], Texts]
    input: str = ""


def _as_is(name: str) -> Meaning:
    return Meaning(lambda text: {name: text}, name)


def _counted(name: str) -> Meaning:
    """A number with the engines' suffixes: 8k is 8,000, 8K is 8,192; -1 and auto are no number."""

    def read(text: str) -> Texts:
        if text.lower() in ("auto", "none", "-1"):
            return {}
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text!r} is not a number: write 8192, 8k (8,000) or 8K (8,192).")
        number = Fraction(match[1].replace(",", "").replace("_", "")) * _SCALE.get(match[2], 1)
        return {name: str(int(number))}

    return Meaning(read, name)


def _switched(name: str, on: str, off: str | None = None) -> Meaning:
    """What a switch means when it is on, or is set to something that is off."""

    def read(text: str) -> Texts:
        value = off if text.lower() in _OFF else on
        return {} if value is None else {name: value}

    return Meaning(read)


def _named(name: str) -> Meaning:
    """A name as the engine has it, or its own choice."""
    return Meaning(lambda text: {} if text.lower() in ("auto", "none", "null") else {name: text})


def _cache_dtype(text: str) -> Texts:
    return {} if text == "auto" else {"cache-dtype": "bfloat16" if text == "bf16" else text}


def _plain_dtype(text: str) -> Texts:
    """TensorRT-LLM's, which has no formats by GPU and backend."""
    if text.startswith("fp8") or text == "auto":
        return {}
    if text not in ("bfloat16", "bf16"):
        raise ConfigError(f"{text!r} is no cache dtype of DeepSeek-V4: fp8, auto or bfloat16.")
    return {"main-format": "bf16", "window-format": "bf16"}


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{text[:60]!r} is not a JSON object.")
    return found


def _attention(text: str) -> Texts:
    found = _object(text)
    texts = _named("attention-backend").of(str(found.get("backend", "auto")))
    if str(found.get("use_fp4_indexer_cache", "")).lower() == "true":
        return texts | {"indexer-format": "mxfp4"}
    dtype = found.get("indexer_kv_dtype", "auto")
    return texts if dtype == "auto" else texts | {"indexer-format": str(dtype)}


DRAFT_LAYERS = {"dspark": 3, "mtp": 1, "eagle": 1, "nextn": 1, "deepseek": 1}
"""Layers with a window that a way to draft adds, by a part of its name."""


def _speculation(text: str) -> Texts:
    found = _object(text)
    texts = _drafts(str(found.get("method", "")))
    tokens = found.get("num_speculative_tokens")
    return texts | ({"draft-tokens": str(tokens)} if isinstance(tokens, int) else {})


def _drafts(method: str) -> Texts:
    if method.lower() in ("", "none"):
        return {}
    for part, layers in DRAFT_LAYERS.items():
        if part in method.lower():
            return {"draft-layers": str(layers)}
    raise ConfigError(f"drafts by {method!r} are not counted: mtp and dspark are.")


OWN_DRAFTS = "own-draft-tokens"  # for merge
_SGLANG_DRAFTS = {"DSPARK": 8}
"""Draft tokens that SGLang takes where none are given, the verified one among them: 7 + 1 of
DSpark, unless the checkpoint says otherwise, and four of EAGLE (``speculative_hook.py``)."""


def _sglang_drafts(text: str) -> Texts:
    tokens = _SGLANG_DRAFTS.get(text.upper(), 4)
    found = _drafts(text)
    return found | {OWN_DRAFTS: str(tokens)} if found else {}


def _dspark_block(text: str) -> Texts:
    """A block of drafts is verified with the token before it."""
    counted = _counted("draft-tokens").of(text)
    return {name: str(int(count) + 1) for name, count in counted.items()}


def _state_dtype(text: str) -> Texts:
    known = {"float32": "fp32", "bfloat16": "bf16"}
    return {"state": known.get(text.lower(), text.lower())}


def _logits(text: str) -> Texts:
    return {name: f"{count}MiB" for name, count in _counted("logits-limit").of(text).items()}


def _gigabytes(text: str) -> Texts:
    """SGLang's decimal gigabytes; 0 is none."""
    size = _counted("host-size").of(text)
    return {name: f"{int(count)}GB" for name, count in size.items() if int(count)}


OWN_TIER, SIMPLE = "own-host-tier", "simple-offload"  # for merge
_OFFLOADED = {
    "OffloadingConnector": "native",
    "SimpleCPUOffloadConnector": "simple",
    "LMCacheMPConnector": "lmcache",
    "LMCacheConnectorV1": "lmcache-local",
}
"""vLLM's connectors that keep blocks in host memory."""
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


_PLAIN_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,12})?")


def _offloading_size(text: str) -> Texts:
    """GiB, with a fraction; what keeps them is the engine's own unless it is given."""
    return {OWN_TIER: "native", "host-size": _in_bytes(text, 2**30, "GiB")}


def _in_bytes(number: object, unit: int, name: str) -> str:
    if not _PLAIN_NUMBER.fullmatch(str(number)):
        raise ConfigError(f"{str(number)[:60]!r} is not a number of {name}: write 100 or 0.5.")
    return str(int(Fraction(str(number)) * unit))


def _offloading_tier(text: str) -> Texts:
    return {OWN_TIER: text}


def _transfer(text: str) -> Texts:
    """The connector of one side, or those that one stands for."""
    found = _object(text)
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
    return {"host-tier": tier} | ({"host-size": _in_bytes(size, 1, "bytes")} if size else {})


def _hisparse(text: str) -> Texts:
    ratio = _object(text).get("host_to_device_ratio")
    return {} if ratio is None else {"hisparse-ratio": _in_bytes(ratio, 1, "entries")}


def _role(text: str) -> Texts:
    return {} if text.lower() == "null" else {"role": text}


def _retention(text: str) -> Texts:
    dense = text.lower() in ("none", "null")
    return {"retention": "dense"} if dense else _counted("retention").of(text)


def _io_backend(text: str) -> Texts:
    return {"host-layout": "page_first_direct"} if text == "direct" else {}


@dataclass(frozen=True)
class Flag:
    """A flag or variable of an engine.

    Attributes:
        spellings: Its names, the usual one first; a variable is in capitals.
        effect: What it does to sizes.
        means: What of ours a value means; None where it is not counted.
        switch: Whether it takes no value.
    """

    spellings: tuple[str, ...]
    effect: str
    means: Meaning | None = None
    switch: bool = False

    @property
    def name(self) -> str:
        """The usual spelling."""
        return self.spellings[0]

    @property
    def is_variable(self) -> bool:
        """Whether it is a variable of the environment."""
        return self.name[0] != "-"


def _flag(spellings: str, effect: str, means: Meaning | None = None) -> Flag:
    return Flag(tuple(spellings.split()), effect, means)


def _switch(spellings: str, effect: str, means: Meaning | None = None) -> Flag:
    return Flag(tuple(spellings.split()), effect, means, switch=True)


_NOTHING = Meaning(lambda _: {})
_HOST = "host memory"
_PART = "ranks that a request's context is spread over: refused by name"
_WEIGHTS = "changes the weights: give their size with --weights"
_GRAPHS = "memory of CUDA graphs, which --reserve stands for"

FLAGS: dict[str, tuple[Flag, ...]] = {
    "vllm": (
        _flag("--model", "the model", _as_is("model")),
        _flag("--tensor-parallel-size -tp", "ranks of a replica", _counted("tp")),
        _flag("--pipeline-parallel-size -pp", "stages", _counted("pp")),
        _flag("--data-parallel-size -dp", "replicas, each with its cache", _counted("dp")),
        _switch(
            "--enable-expert-parallel -ep", "nothing: all ranks share the experts anyway", _NOTHING
        ),
        _flag("--max-model-len", "the longest request", _counted("context")),
        _flag("--max-num-seqs", "requests of a replica at once", _counted("request-limit")),
        _flag(
            "--max-num-batched-tokens",
            "the reserve in flight of every request, twice with async scheduling",
            _counted("step-tokens"),
        ),
        _flag(
            "--gpu-memory-utilization", "share of a GPU that is used", _as_is("memory-fraction")
        ),
        _flag(
            "--kv-cache-memory-bytes",
            "memory for KV, whatever weights and utilization leave",
            _counted("kv-memory"),
        ),
        _flag("--num-gpu-blocks-override", "blocks, whatever fits", _counted("kv-blocks")),
        _flag("--block-size", "tokens of a block", _counted("block-tokens")),
        _flag("--kv-cache-dtype", "bytes of an entry", Meaning(_cache_dtype)),
        _flag("--speculative-config -sc", "windows of draft layers", Meaning(_speculation)),
        _flag("--attention-config -ac", "bytes of an indexer key", Meaning(_attention)),
        _switch("--async-scheduling", "two steps in flight", _switched("overlap", "2")),
        _switch("--no-async-scheduling", "one step in flight", _switched("overlap", "1")),
        _switch(
            "--enable-prefix-caching", "nothing of vLLM's size", _switched("prefix-cache", "on")
        ),
        _switch(
            "--no-enable-prefix-caching",
            "nothing of vLLM's size",
            _switched("prefix-cache", "off"),
        ),
        _flag(
            "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "the indexer's logits are cut to it",
            Meaning(_logits, "logits-limit"),
        ),
        _flag(
            "--attention-backend",
            "plain rows of 512 or 1,024 B with FLASHINFER_MLA_SPARSE_DSV4 on SM100",
            _named("attention-backend"),
        ),
        _flag(
            "--kv-offloading-size",
            f"{_HOST}: GiB of all ranks of a replica",
            Meaning(_offloading_size),
        ),
        _flag(
            "--kv-offloading-backend", f"{_HOST}: native unless given", Meaning(_offloading_tier)
        ),
        _flag(
            "VLLM_USE_SIMPLE_KV_OFFLOAD", f"{_HOST}: blocks of every rank",
            _switched(SIMPLE, "on"),
        ),
        _flag(
            "--kv-transfer-config", f"{_HOST}; or what a prompt sends to the decode side",
            Meaning(_transfer),
        ),
        _flag("LMCACHE_CHUNK_SIZE", "tokens of LMCache's chunks", _counted("host-chunk")),
        _flag(
            "LMCACHE_MAX_LOCAL_CPU_SIZE", "memory of LMCache in vLLM's process, GiB",
            Meaning(lambda text: {"host-size": _in_bytes(text, 2**30, "GiB")}),
        ),
        _flag("LMCACHE_MAX_LOCAL_DISK_SIZE", "disk beyond LMCache's memory, GiB"),
        _flag("LMCACHE_LOCAL_DISK", "where LMCache's disk is"),
        _flag("LMCACHE_CONFIG_FILE", "a file of LMCache's settings, which is not read"),
        _flag(
            "--prefix-cache-retention-interval",
            f"which windows stay cached in {_HOST}",
            Meaning(_retention),
        ),
        _flag("--prefix-match-unit", "where hits end"),
        _switch("--swa-bounded-replay", "V4.1's windows leave the prefix cache",
                _switched("bounded-replay", "on")),
        _switch("--no-swa-bounded-replay", "V4.1's windows are in the prefix cache",
                _switched("bounded-replay", "off")),
        _flag("--engram-config", "V4.1's tables, in host memory by default"),
        _flag("--decode-context-parallel-size -dcp", _PART, _counted("dcp")),
        _flag("--prefill-context-parallel-size -pcp", _PART, _counted("prefill-cp")),
        _flag("--cpu-offload-gb", _WEIGHTS),
        _flag("--quantization -q", _WEIGHTS),
        _flag("--num-redundant-experts", _WEIGHTS),
        _switch("--enable-eplb", _WEIGHTS),
        _switch("--enable-lora", _WEIGHTS),
        _flag("--hf-overrides", "may change the model itself"),
        _flag("--performance-mode", "throughput doubles batched tokens and requests"),
        _flag("--all2all-backend", "256 batched tokens with DeepEP's low latency; its buffers"),
        _flag("--compilation-config -cc", _GRAPHS),
        _flag("--max-cudagraph-capture-size", _GRAPHS),
        _switch("--enforce-eager", _GRAPHS),
        _switch("--enable-dbo", "half batches, each with buffers of its own"),
        _flag("VLLM_USE_V2_MODEL_RUNNER", "steps in flight with pipeline stages"),
    ),
    "sglang": (
        _flag("--model-path --model", "the model", _as_is("model")),
        _flag("--tp-size --tensor-parallel-size --tp", "ranks, replicas included",
              _counted("tp")),
        _flag("--pp-size --pipeline-parallel-size --pp", "stages", _counted("pp")),
        _flag("--dp-size --data-parallel-size --dp", "replicas", _counted("dp")),
        _switch("--enable-dp-attention", "replicas are ranks of one server",
                _switched("dp-attention", "on")),
        _flag("--ep-size --expert-parallel-size --ep", "spreads the experts", _counted("ep")),
        _flag("--context-length", "the longest request", _counted("context")),
        _flag("--max-running-requests", "requests at once, of all replicas: the pool of windows",
              _counted("request-limit")),
        _flag("--chunked-prefill-size", "tokens in flight; the share of a GPU, if not given",
              _counted("step-tokens")),
        _flag("--mem-fraction-static", "share of a GPU for weights and cache",
              _as_is("memory-fraction")),
        _flag("--max-total-tokens", "full tokens at most", _counted("kv-blocks")),
        _flag("--page-size", "tokens of a page", _counted("block-tokens")),
        _flag("--swa-full-tokens-ratio", "window slots for a full token",
              _as_is("window-ratio")),
        _flag("--kv-cache-dtype", "bytes of an entry", Meaning(_cache_dtype)),
        _flag("--speculative-algorithm --speculative-algo", "windows of draft layers",
              Meaning(_sglang_drafts)),
        _flag("--speculative-num-draft-tokens", "window slots of a running request",
              _counted("draft-tokens")),
        _flag("--speculative-dspark-block-size", "window slots of a running request",
              Meaning(_dspark_block)),
        _switch("--disable-radix-cache", "no windows of cached prefixes",
                _switched("prefix-cache", "off")),
        _switch("--disable-overlap-schedule", "one chunk in flight", _switched("overlap", "1")),
        _switch("--enable-deepseek-v4-fp4-indexer", "indexer keys of 68 B, charged as 132 B",
                _switched("indexer-format", "mxfp4")),
        _flag("SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS",
              "window slots of a running request", _switched("window-slots", "freed", "kept")),
        _flag("SGLANG_DSV4_COMPRESS_STATE_DTYPE", "bytes of compressor states",
              Meaning(_state_dtype)),
        _flag("SGLANG_OPT_USE_ONLINE_COMPRESS", "HCA states as a running softmax",
              _switched("state", "online")),
        _flag("--disaggregation-mode",
              "decode: no chunks, no prefixes in the pool of windows; prefill: no decode graphs; "
              "V4.1's own records on SM100", Meaning(_role)),
        _flag("--disaggregation-decode-extra-slots",
              "requests that are received while others run", _counted("extra-slots")),
        _switch("--disaggregation-decode-enable-radix-cache",
                "prefixes on the decode side, which V4 has only with unified KV"),
        _switch("--disaggregation-decode-enable-offload-kvcache",
                f"{_HOST}: of the decode side, with a storage backend"),
        _flag("--disaggregation-transfer-backend", "nothing: what carries the pages", _NOTHING),
        _switch("--enable-hierarchical-cache --enable-hicache",
                f"{_HOST}: a copy of the GPU's pools", _switched("host-tier", "hicache")),
        _flag("--hicache-ratio", f"{_HOST}: so many times the GPU's pools",
              _as_is("host-ratio")),
        _flag("--hicache-size", f"{_HOST}, in GB of every rank; V4 refuses it",
              Meaning(_gigabytes)),
        _flag("--hicache-mem-layout", "staging on the GPU with page_first",
              _named("host-layout")),
        _flag("--hicache-io-backend", "no staging on the GPU with direct", Meaning(_io_backend)),
        _flag("--hicache-write-policy", "nothing: when pages are copied to the host", _NOTHING),
        _flag("--hicache-storage-backend", "pages beyond the host's, which are not sized",
              _named("host-storage")),
        _flag("--hicache-storage-prefetch-policy", "nothing: how long a request waits", _NOTHING),
        _switch("--enable-lmcache", "LMCache's server keeps pages, which are not sized"),
        _flag("--hicache-host-memory-mode", "buffer_only: 1.2 of the GPU's pools, as a passage"),
        _flag("--hicache-host-memory-fraction", "0.8 is assumed where no ratio is given"),
        _switch("--enable-hisparse", "CSA's entries in host memory, a part of them on the GPU",
                _switched("hisparse", "on")),
        _flag("--hisparse-config", "host_to_device_ratio: entries for one on the GPU, 2 unasked",
              Meaning(_hisparse)),
        _switch("--enable-unified-memory", "pools that borrow from each other: refused by name",
                _switched("unified-memory", "on")),
        _flag("--dcp-size --decode-context-parallel-size", _PART, _counted("dcp")),
        _flag("--attn-cp-size --attention-context-parallel-size", _PART, _counted("prefill-cp")),
        _switch("--enable-prefill-cp", _PART, _switched("prefill-cp", "2")),
        _flag("--swa-prefix-tails", "windows of cached prefixes: four a request are assumed"),
        _flag("--dsv4-attn-backend", "uniform FP8 rows with trtllm, V4.1's with flashmla_mega",
              _named("attention-backend")),
        _switch("--enable-encoder-swa-bounded-replay",
                "windows leave the prefix cache: every request has its own",
                _switched("window-slots", "own")),
        _switch("--enable-decoder-swa-bounded-replay",
                "no hit covers a prompt's last 128 tokens", _switched("bounded-replay", "on")),
        _switch("--no-enable-decoder-swa-bounded-replay",
                "a hit may cover a prompt's last 128 tokens", _switched("bounded-replay", "off")),
        _flag("--moe-a2a-backend", "2 GiB more are kept for DeepEP"),
        _flag("--cuda-graph-max-bs --cuda-graph-max-bs-decode", _GRAPHS),
        _switch("--disable-cuda-graph", _GRAPHS),
        _flag("--cpu-offload-gb", _WEIGHTS),
        _flag("--quantization", _WEIGHTS),
        _switch("--enable-lora", _WEIGHTS),
        _flag("--speculative-num-steps", "nothing: only the draft tokens count", _NOTHING),
        _flag("--speculative-eagle-topk", "with 1, nothing", _NOTHING),
        _flag("SGLANG_DSV4_KV_LAYOUT", "bytes of an entry: v4 is assumed"),
        _flag("SGLANG_HACK_FLASHMLA_BACKEND",
              "unified KV with unified_kv_triton, on AMD's GPUs: refused by name",
              Meaning(lambda x: {"unified-kv": "on"} if x == "unified_kv_triton" else {})),
        _flag("SGLANG_DSV4_UNIFIED_KV_FP8", "nothing without unified_kv_triton", _NOTHING),
        _flag("SGLANG_SWA_EVICTION_INTERVAL", "window slots of a request: 128 is assumed"),
        _flag("SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION", "bound of the indexer's logits"),
        _flag("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "memory that is kept for all but the cache"),
    ),
    "trtllm": (
        _flag("--model", "the model", _as_is("model")),
        _flag("--tp_size --tp --tensor_parallel_size", "ranks", _counted("tp")),
        _flag("--pp_size --pp --pipeline_parallel_size", "stages", _counted("pp")),
        _flag("--ep_size --ep --moe_expert_parallel_size", "spreads the experts", _counted("ep")),
        _flag("--max_seq_len", "the longest request", _counted("context")),
        _flag("--max_batch_size", "requests at once", _counted("request-limit")),
        _flag("--max_num_tokens", "tokens of a step", _counted("step-tokens")),
        _flag(
            "--kv_cache_free_gpu_memory_fraction --free_gpu_memory_fraction",
            "share of a GPU, here of all its memory, there of what is free after the weights",
            _as_is("memory-fraction"),
        ),
        _flag("--kv_cache_dtype", "bytes of an entry", Meaning(_plain_dtype)),
        _flag("--extra_llm_api_options --config", "a file of settings, which is not read"),
    ),
}  # fmt: skip
"""What every engine's flags mean."""


def find_flag(family: str, spelling: str) -> Flag | None:
    """The flag of a spelling, dashes or underscores; None where the engine has no such flag."""
    wanted = _plain(spelling)
    return next(
        (flag for flag in FLAGS.get(family, ()) if wanted in map(_plain, flag.spellings)), None
    )


def flag_for(family: str, name: str) -> str:
    """How an engine calls an input of ours: ``--max-num-seqs`` for ``request-limit``."""
    flags = (flag for flag in FLAGS.get(family, ()) if flag.means and flag.means.input == name)
    return next((flag.name for flag in flags), f"--{name}")


def _plain(spelling: str) -> str:
    return spelling.replace("_", "-") if spelling.startswith("--") else spelling
