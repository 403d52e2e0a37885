"""SGLang: the versions that are sized, the rules by which 0.5.23 reuses prefixes, and its flags.

V4.1 has two rules of its own. Decoder replay writes windows of late layers for the last rows of a
prompt alone, so that no hit covers a prompt's last window (``swa_reprefill_tail_tokens``). Encoder
replay gives every request a window of its own, which the tree knows nothing of, and computes the
last window of a hit again (``encoder_swa_replay.py``); then the other one changes no hit.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from dsv4kv.choices import choose
from dsv4kv.engines import flags as fl
from dsv4kv.engines import rule as rl


@dataclass(frozen=True)
class Build:
    """A range of versions, called after the newest."""

    newest: str
    oldest: str
    padded: bool = False  # entries are priced with their page's padding: 585 B, not 584 B
    stage_layers: bool = True  # windows of this rank's layers; before, of all and drafts
    state_per: Literal["window", "page"] = "window"  # what has a ring of CSA states
    hca_state_fixed: bool = True  # rows of every request; before, a ring for a window
    request_windows: bool = False  # with a request limit and no ratio a fixed size
    frees_windows: bool = True  # by default a running request frees window slots out of its window
    bounds_logits: bool = False  # the indexer's logits are cut to a share of what the cache leaves
    caps_graphs: bool = False  # decode graphs are captured up to the request limit
    checks_windows: bool = False  # a pool of windows that holds no request is refused at the start
    # V4.1's entries are priced with their pages' padding, and pages that its pools reserve are
    # taken off; before, every entry as V4's
    v41_pages: bool = False
    leaves_window: bool = False  # Of V4.1, no hit covers a prompt's last window by default
    half_scores: bool = False  # V4.1's are bf16 on SM100, in pieces that fill half their bound
    draft_heads: bool = True  # drafts have their own until the cache is sized
    draft_reserve_mib: int = 0  # kept for drafts, when the share of the cache is guessed
    fields: tuple[str, ...] = ("c128_state_fixed",)  # that the line shows, in order
    flags: tuple[str, ...] = ()  # switches that the line shows first
    seen_in_logs: bool = False
    kinds: tuple[str, ...] = ("v4",)  # generations of models it serves


_RINGS = ("swa_ring_fixed", "c4_state_fixed")
_V0_5_14 = Build(
    "0.5.14", "0.5.13", hca_state_fixed=False, frees_windows=False, draft_heads=False, fields=()
)
_V0_5_22 = Build(
    "0.5.22",
    "0.5.21",
    padded=True,
    state_per="page",
    request_windows=True,
    bounds_logits=True,
    caps_graphs=True,
    checks_windows=True,
    fields=("c128_state_fixed", "c2_state_fixed", "swa_fixed", *_RINGS),
    flags=("unified", "unified_fp8", "dspark_draft_bf16"),
    kinds=("v4", "v41", "flat"),
)
BUILDS = (
    replace(_V0_5_14, newest="0.5.12", oldest="0.5.12", stage_layers=False, draft_reserve_mib=4096,
            seen_in_logs=True),
    _V0_5_14,
    Build("0.5.17", "0.5.15", frees_windows=False, seen_in_logs=True),
    Build("0.5.19", "0.5.18"),
    Build("0.5.20", "0.5.20", fields=("c128_state_fixed", *_RINGS),
          flags=("unified", "unified_fp8"), checks_windows=True, seen_in_logs=True),
    _V0_5_22,
    replace(_V0_5_22, newest="0.5.23", oldest="0.5.23", v41_pages=True, leaves_window=True,
            half_scores=True),
)  # fmt: skip

_POLICY = rl.Policy("radix", prompts_alone=True, host_by_ratio=True)
_MORE_PAGES = {
    "evicted_block": "--mem-fraction-static",
    "alignment": "a smaller --page-size",
}
_MORE = "--swa-full-tokens-ratio; more memory"
_ONE_POOL = rl.Variant(
    "radix tree of pages, one pool",
    "sglang:0.5.23",
    default_for=("flat",),
    drafts=("none", "dspark", "mtp"),
    policy=_POLICY,
    remedies=_MORE_PAGES,
)
_FREES = "SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS"
_V4 = replace(_ONE_POOL, kinds=("v4", "v41"), default_for=("v4",), groups=True)
_V41 = replace(_V4, kinds=("v41",), default_for=("v41",), drafts=("none", "dspark"))
_TAIL = rl.Retention(chunks=True)


def _rule(
    of: rl.Variant, explains: str, setting: str, *, remedies: dict[str, str], **facts: Any
) -> rl.Variant:
    remedies = _MORE_PAGES | remedies
    return replace(of, explains=explains, setting=setting, remedies=remedies, **facts)


RULES = {
    "sglang": _ONE_POOL,
    "sglang-v4:dense": _rule(
        _V4, "windows of whole prompts, in a pool a tenth as large", f"{_FREES}=0",
        flags={"window_slots": "kept"}, retention=rl.EVERYWHERE,
        remedies={
            "evicted_block": "only the windows of the last pages (sglang-v4:tail); more memory",
            "evicted_checkpoint": _MORE, "no_checkpoint": _MORE,
        },
    ),
    "sglang-v4:tail": _rule(
        _V4, "… only at ends of chunks and where prompts part (SGLang's default)", f"{_FREES}=1",
        flags={"window_slots": "freed"}, retention=_TAIL,
        remedies={
            "evicted_checkpoint": _MORE,
            "no_checkpoint": "a smaller --chunked-prefill-size: windows stay at ends of chunks",
        },
    ),
    "sglang-v41": _rule(
        _V41, "V4.1: … and a prompt's last 128 tokens are never found (SGLang's default)",
        "--enable-decoder-swa-bounded-replay",
        retention=_TAIL, policy=replace(_POLICY, leaves_window=True),
        remedies={
            "evicted_checkpoint": _MORE,
            "last_token": "--no-enable-decoder-swa-bounded-replay (sglang-v4:tail)",
            "no_checkpoint": "--enable-encoder-swa-bounded-replay (sglang-v41:encoder)",
        },
    ),
    "sglang-v41:encoder": _rule(
        _V41, "… with windows that are never kept: 128 tokens of a hit are computed again",
        "--enable-encoder-swa-bounded-replay",
        flags={"window_slots": "own"}, groups=False, policy=replace(_POLICY, replays=True),
        remedies={"replay": "windows that are kept (sglang-v41); longer shared prefixes"},
    ),
}  # fmt: skip

_LIMITS = (  # of 0.5.23: arg_groups/deepseek_v4_hook.py, arg_groups/hisparse_hook.py
    rl.Limit("dcp", rl.KINDS),
    rl.Limit("prefill_cp", rl.KINDS),
    rl.Limit("hisparse", ("v41",), "DeepSeek-V4.1 does not support HiSparse yet"),
    rl.Limit("hisparse", ("flat",)),
    rl.Limit(
        "hisparse_radix",
        ("v4",),
        "Hierarchical sparse attention currently requires --disable-radix-cache.",
    ),
    rl.Limit("unified_memory", rl.KINDS),
    rl.Limit("unified_kv", ("v41",), "DeepSeek-V4.1 does not support the unified KV layout yet"),
    rl.Limit("unified_kv", ("v4", "flat")),
)

# ---- flags. Source: 0.5.23, ``arg_groups/fields``, ``environ.py``.


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
    fl.flag("--tp-size --tensor-parallel-size --tp", "ranks, replicas included", "tp"),
    fl.flag("--pp-size --pipeline-parallel-size --pp", "stages", "pp"),
    fl.flag("SGLANG_PP_LAYER_PARTITION", "layers of every stage", fl.as_is("stage-layers")),
    fl.flag("--dp-size --data-parallel-size --dp", "replicas", "dp"),
    fl.switch("--enable-dp-attention", "replicas are ranks of one server",
              fl.switched("dp-attention", "on")),
    fl.flag("--ep-size --expert-parallel-size --ep", "spreads the experts", "ep"),
    fl.flag("--context-length", "the longest request", "context"),
    fl.flag("--max-running-requests", "concurrent requests of all replicas: the pool of windows",
            "request-limit"),
    fl.flag("--chunked-prefill-size", "tokens in flight; the share of a GPU, if not given",
            "step-tokens"),
    fl.flag("--mem-fraction-static", "share of a GPU for weights and cache",
            fl.as_is("memory-fraction")),
    fl.flag("--max-total-tokens", "full tokens at most", "kv-blocks"),
    fl.flag("--page-size", "tokens of a page", "block-tokens"),
    fl.flag("--swa-full-tokens-ratio", "window slots for a full token", fl.as_is("window-ratio")),
    fl.flag("--kv-cache-dtype", "bytes of an entry", fl.cache_dtype),
    fl.flag("--speculative-algorithm --speculative-algo", "windows of draft layers",
            _sglang_drafts),
    fl.flag("--speculative-num-draft-tokens", "window slots of a running request", "draft-tokens"),
    fl.flag("--speculative-dspark-block-size", "window slots of a running request", _dspark_block),
    fl.switch("--disable-radix-cache", "no windows of cached prefixes",
              fl.switched("prefix-cache", "off")),
    fl.switch("--disable-overlap-schedule", "one chunk in flight", fl.switched("overlap", "1")),
    fl.switch("--enable-deepseek-v4-fp4-indexer", "indexer keys of 68 B, charged as 132 B",
              fl.switched("indexer-format", "mxfp4")),
    fl.flag("SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS",
            "window slots of a running request", fl.switched("window-slots", "freed", "kept")),
    fl.flag("SGLANG_DSV4_COMPRESS_STATE_DTYPE", "bytes of compressor states", _state_dtype),
    fl.flag("SGLANG_OPT_USE_ONLINE_COMPRESS", "HCA states as a running softmax",
            fl.switched("state", "online")),
    fl.flag("--disaggregation-mode",
            "decode: no chunks, no prefixes in the pool of windows; prefill: no decode graphs; "
            "V4.1's own records on SM100",
            fl.named("role")),
    fl.flag("--disaggregation-decode-extra-slots", "requests that are received while others run",
            "extra-slots"),
    fl.switch("--disaggregation-decode-enable-radix-cache",
              "prefixes on the decode side, which V4 has only with unified KV"),
    fl.switch("--disaggregation-decode-enable-offload-kvcache",
              f"{fl.HOST}: of the decode side, with a storage backend"),
    fl.flag("--disaggregation-transfer-backend", "nothing: what carries the pages", fl.NOTHING),
    fl.switch("--enable-hierarchical-cache --enable-hicache",
              f"{fl.HOST}: a copy of the GPU's pools", fl.switched("host-tier", "hicache")),
    fl.flag("--hicache-ratio", f"{fl.HOST}: a multiple of the GPU's pools",
            fl.as_is("host-ratio")),
    fl.flag("--hicache-size", f"{fl.HOST}, in GB of every rank; V4 refuses it", _gigabytes),
    fl.flag("--hicache-mem-layout", "staging on the GPU with page_first", fl.named("host-layout")),
    fl.flag("--hicache-io-backend", "no staging on the GPU with direct",
            lambda x: {"host-layout": "page_first_direct"} if x == "direct" else {}),
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
            _hisparse),
    fl.switch("--enable-unified-memory", "pools that borrow from each other: refused by name",
              fl.switched("unified-memory", "on")),
    fl.flag("--dcp-size --decode-context-parallel-size", fl.PART, "dcp"),
    fl.flag("--attn-cp-size --attention-context-parallel-size", fl.PART, "prefill-cp"),
    fl.switch("--enable-prefill-cp", fl.PART, fl.switched("prefill-cp", "2")),
    fl.flag("--swa-prefix-tails", "windows of cached prefixes: four a request are assumed"),
    fl.flag("--dsv4-attn-backend", "uniform FP8 rows with trtllm, V4.1's with flashmla_mega",
            fl.named("attention-backend")),
    fl.switch("--enable-encoder-swa-bounded-replay",
              "windows leave the prefix cache: every request has its own",
              fl.switched("window-slots", "own")),
    fl.switch("--enable-decoder-swa-bounded-replay", "no hit covers a prompt's last 128 tokens",
              fl.switched("bounded-replay", "on")),
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
            lambda x: {"unified-kv": "on"} if x == "unified_kv_triton" else {}),
    fl.flag("SGLANG_DSV4_UNIFIED_KV_FP8", "nothing without unified_kv_triton", fl.NOTHING),
    fl.flag("SGLANG_SWA_EVICTION_INTERVAL", "window slots of a request: 128 is assumed"),
    fl.flag("SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION", "bound of the indexer's logits"),
    fl.flag("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "memory that is kept for all but the cache"),
)  # fmt: skip


FAMILY = rl.Family(
    "sglang",
    "SGLang",
    "sizes:SglangEngine",
    BUILDS,
    RULES,
    {"window_slots": "freed"},
    rl.Launch(
        words=(("sglang", "serve"), ("dynamo.sglang",), ("sglang.launch_server",)),
        images=("sglang", "sgl-dev"),
        program="python -m sglang.launch_server",
        arguments="--model-path {model} --tp-size {ranks}",
        stages="--pp-size {pp}",
        replicas="--dp-size {dp} --enable-dp-attention --ep-size {ep}",
        drafts="--speculative-algorithm EAGLE --speculative-num-steps {count} "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens {verified}",
        role="--disaggregation-mode {role}",
        written={
            "state=bf16": "SGLANG_DSV4_COMPRESS_STATE_DTYPE=bfloat16",
            "state=online": "SGLANG_OPT_USE_ONLINE_COMPRESS=1",
        },
        counts_verified=True,
        shortens=True,
        tp_spans_replicas=True,
    ),
    flags=FLAGS,
    limits=_LIMITS,
    host_tiers={"hicache": "SGLang's HiCache"},
    sends="as SGLang 0.5.23 sends them",
    result_fields=("random_range_ratio", "sharegpt_output_len"),
    log_mark="ServerArgs(",
    days={"20260516": "0.5.12", "20260611": "0.5.13", "20260710": "0.5.15", "20260821": "0.5.18",
          "20260918": "0.5.20", "20261001": "0.5.21", "20261030": "0.5.23"},
)  # fmt: skip
