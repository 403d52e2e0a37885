"""SGLang: the versions that are sized, and the rules by which 0.5.23 reuses prefixes.

V4.1 has two rules of its own. Decoder replay writes windows of late layers for the last rows of a
prompt alone, so that no hit covers a prompt's last window (``swa_reprefill_tail_tokens``). Encoder
replay gives every request a window of its own, which the tree knows nothing of, and computes the
last window of a hit again (``encoder_swa_replay.py``); then the other one changes no hit.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from dsv4kv.engines import rule as rl


@dataclass(frozen=True)
class Build:
    """A range of versions, called after the newest.

    Attributes:
        padded: Entries are priced with their page's padding (585 B, 864 B instead of 584 B).
        stage_layers: Windows are priced for this rank's layers; before, for all and drafts.
        state_per: CSA states: a ring for every 128-token ``window`` or for every ``page``.
        hca_state_fixed: HCA states are rows of every request; before, a ring for every window.
        request_windows: With a request limit and no ratio given, windows get a fixed size.
        frees_windows: By default a running request frees window slots out of its window.
        bounds_logits: The indexer's logits are cut to a share of what the cache leaves.
        caps_graphs: Decode graphs are captured up to the request limit, where one is given.
        checks_windows: A pool of windows that holds no request is refused at the start.
        v41_pages: V4.1's entries are priced with their pages' padding, and pages that its pools
            reserve are taken off; before, every entry as V4's.
        leaves_window: Of V4.1, no hit covers a prompt's last window by default.
        half_scores: On SM100 V4.1's scores are bf16, in pieces that fill half their bound.
        draft_heads: Drafts have an embedding and a head of their own until the cache is sized.
        draft_reserve_mib: Kept for drafts, when the share of the cache is guessed.
        fields: Fixed sizes that the line shows, in order, between memory and tokens.
        flags: Switches that the line shows first.
        kinds: Generations of models it serves.
    """

    newest: str
    oldest: str
    padded: bool = False
    stage_layers: bool = True
    state_per: Literal["window", "page"] = "window"
    hca_state_fixed: bool = True
    request_windows: bool = False
    frees_windows: bool = True
    bounds_logits: bool = False
    caps_graphs: bool = False
    checks_windows: bool = False
    v41_pages: bool = False
    leaves_window: bool = False
    half_scores: bool = False
    draft_heads: bool = True
    draft_reserve_mib: int = 0
    fields: tuple[str, ...] = ("c128_state_fixed",)
    flags: tuple[str, ...] = ()
    seen_in_logs: bool = False
    kinds: tuple[str, ...] = ("v4",)


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
    "evicted_block": "more memory: --mem-fraction-static",
    "alignment": "a smaller --page-size",
}
_MORE = "try another --swa-full-tokens-ratio; more memory"
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
            "no_checkpoint": "try windows of whole prompts (sglang-v4:dense)",
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

FAMILY = rl.Family(
    "sglang",
    "SGLang",
    "sizes:SglangEngine",
    BUILDS,
    RULES,
    {"window_slots": "freed"},
    rl.Launch(
        words=(("sglang", "serve"), ("dynamo.sglang",), ("sglang.launch_server",)),
        images=("sglang",),
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
        tp_spans_replicas=True,
    ),
    has_flags=True,
    limits=_LIMITS,
    host_tiers={"hicache": "SGLang's HiCache"},
    sends="as SGLang 0.5.23 sends them",
    result_fields=("random_range_ratio", "sharegpt_output_len"),
    log_mark="ServerArgs(",
    days={"20260516": "0.5.12", "20260611": "0.5.13", "20260710": "0.5.15", "20260821": "0.5.18",
          "20260918": "0.5.20", "20261001": "0.5.21", "20261030": "0.5.23"},
)  # fmt: skip
