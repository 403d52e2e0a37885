"""vLLM: the versions that are sized, and the rules by which 0.33 reuses prefixes."""

from dataclasses import dataclass, replace
from typing import Literal

from dsv4kv.engines.rule import EVERYWHERE, Family, Launch, Limit, Policy, Retention, Variant

Grouping = Literal["tuples", "patterns"]
Packing = Literal["tuples", "slots", "widest"]


@dataclass(frozen=True)
class Release:
    """A range of versions, called after the newest.

    Attributes:
        grouping: How window groups are cut: ``tuples`` up to 0.28, ``patterns`` from 0.29.
        packing: What makes the bytes of a block.
        weighted: A request's need is weighted by each group's bytes, against the full group's,
            and window pages are padded to context pages; otherwise its blocks are counted.
        batches_counted: Every concurrent batch has its tokens in flight; before, one step's
            are counted, with async scheduling too (logs of 0.23 to 0.26).
        one_line: Tokens and concurrency are logged in one line.
        null_block: The check at start keeps one block back.
        kinds: Generations of models it serves.
        largest_tokens: ``max_num_batched_tokens`` on a GPU of 160 GiB or more.
        small_gb10: A DGX Spark counts as a small GPU, whatever its memory.
        overlap_stages: With pipeline stages, too, a step is scheduled while others run.
        counts_graphs: An estimate of CUDA graphs is taken before the cache is sized.
        bounds_scores: V4.1's indexer scores are bounded in the step that is profiled.
        sm100_formats: On SM100 V4.1 has records of its own, and a key's scale is there four times.
    """

    newest: str
    oldest: str
    grouping: Grouping = "tuples"
    packing: Packing = "slots"
    weighted: bool = True
    batches_counted: bool = True
    one_line: bool = False
    null_block: bool = False
    seen_in_logs: bool = False
    kinds: tuple[str, ...] = ("v4",)
    largest_tokens: int = 8192
    small_gb10: bool = False
    overlap_stages: bool = False
    counts_graphs: bool = False
    bounds_scores: bool = False
    sm100_formats: bool = False

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
    "evicted_block": "more memory: --gpu-memory-utilization",
    "alignment": "a smaller --block-size",
}
_FEWER = "--prefix-cache-retention-interval 0 (vllm-v4:semantic); more memory"
_SPARSE = "--prefix-cache-retention-interval 4096 or 0 (vllm-v4:4096, :semantic)"
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
        evicted_checkpoint="more memory: --gpu-memory-utilization",
        no_checkpoint="try --prefix-cache-retention-interval 4096 (vllm-v4:4096)",
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
    has_flags=True,
)
