"""Why tokens that had been seen were computed again, and what gets them back, by rule."""

from collections.abc import Sequence

from dsv4kv.report.findings import Finding
from dsv4kv.report.record import Case

_REASONS = {
    "evicted_block": ("block evicted", "more memory, or another prefix.policy"),
    "evicted_checkpoint": ("checkpoint evicted", "a larger cache.checkpoint_share"),
    "no_checkpoint": ("no checkpoint there", "prefix.strategy ends+junctions or periodic"),
    "alignment": ("partial block", "smaller blocks"),
    "last_token": ("last token of a prompt", "always computed"),
    "replay": ("window computed again", "a prefix.strategy with checkpoints"),
    "collision_guard": ("equal hash, other tokens", "a stronger hash"),
    "in_flight": ("just being computed", "prefix.defer"),
    "draft": ("unused for drafts", "prefix.speculation dspark or none"),
}
_VLLM = {
    "evicted_block": "more memory: gpu_memory_utilization",
    "alignment": "a smaller block_size",
}
_SGLANG = {
    "evicted_block": "more memory: mem_fraction_static",
    "alignment": "a smaller page_size",
}
_FEWER_WINDOWS = "prefix_cache_retention_interval=0 (vllm-v4:semantic); more memory"
_SPARSE_WINDOWS = "prefix_cache_retention_interval=4096 or 0 (vllm-v4:4096, :semantic)"
_MORE_WINDOWS = "swa_full_tokens_ratio above 0.1; more memory"
ENGINE_REMEDIES: dict[str, dict[str, str]] = {
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "vllm-v4:dense": _VLLM
    | {"evicted_block": _SPARSE_WINDOWS, "evicted_checkpoint": _SPARSE_WINDOWS},
    "vllm-v4:4096": _VLLM
    | {
        "evicted_block": _FEWER_WINDOWS,
        "evicted_checkpoint": _FEWER_WINDOWS,
        "no_checkpoint": "a shorter prefix_cache_retention_interval, where memory is left",
    },
    "vllm-v4:semantic": _VLLM
    | {
        "evicted_checkpoint": "more memory: gpu_memory_utilization",
        "no_checkpoint": "prefix_cache_retention_interval=4096 (vllm-v4:4096)",
    },
    "sglang-v4:dense": _SGLANG
    | {
        "evicted_block": "windows of the last pages alone (sglang-v4:tail); " + _MORE_WINDOWS,
        "evicted_checkpoint": _MORE_WINDOWS,
        "no_checkpoint": _MORE_WINDOWS,
    },
    "sglang-v4:tail": _SGLANG
    | {
        "evicted_checkpoint": _MORE_WINDOWS,
        "no_checkpoint": "windows of whole prompts (sglang-v4:dense) with " + _MORE_WINDOWS,
    },
}
"""What gets tokens back by an engine's rule, where it is not what it is by the toolkit's own."""


def name_loss(reason: str) -> str:
    """A reason in words."""
    return _REASONS[reason][0]


def name_remedy(rule: str, reason: str) -> str:
    """What gets tokens back that were lost for a reason."""
    return ENGINE_REMEDIES.get(rule, {}).get(reason, _REASONS[reason][1])


def compare_rules(cases: Sequence[Case]) -> list[Finding]:
    """Which setting of an engine saves most, where a sweep went over rules and nothing else."""
    saved: dict[str, list[tuple[float, str, str]]] = {}
    for case in cases:
        if set(case.axis) != {"prefix.rule"} or case.replay is None:
            continue
        reuse = case.replay.reuse
        if reuse.setting and reuse.prompt_tokens:
            share = reuse.saved_tokens / reuse.prompt_tokens
            family = reuse.rule.partition(":")[0]
            saved.setdefault(family, []).append((share, reuse.setting, reuse.rule))
    found = []
    for settings in saved.values():
        (worst, other, _), (best, setting, rule) = min(settings), max(settings)
        if best > worst:
            gain = f"{best - worst:.1%} of all prompt tokens"
            found.append(Finding("note", f"{setting} ({rule}) wins back {gain} over {other}"))
    return found
