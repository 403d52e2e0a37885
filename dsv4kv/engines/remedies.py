"""What wins back prompt tokens that were lost for a reason, in each engine's own settings."""

_OWN = {
    "evicted_block": "more memory, or another prefix.policy",
    "evicted_checkpoint": "a larger cache.checkpoint_share",
    "no_checkpoint": "prefix.strategy ends+junctions or periodic",
    "alignment": "smaller blocks",
    "last_token": "none: always computed",
    "replay": "a prefix.strategy with checkpoints",
    "collision_guard": "a stronger hash",
    "in_flight": "prefix.defer",
    "draft": "prefix.speculation dspark or none",
}
_VLLM = {
    "evicted_block": "more memory: --gpu-memory-utilization",
    "alignment": "a smaller --block-size",
}
_SGLANG = {
    "evicted_block": "more memory: --mem-fraction-static",
    "alignment": "a smaller --page-size",
}
_RETENTION = "--prefix-cache-retention-interval"
_SPARSE = f"{_RETENTION} 4096 or 0 (vllm-v4:4096, :semantic)"
_LAST = f"{_RETENTION} 0 (vllm-v4:semantic); more memory"
_RATIO = "--swa-full-tokens-ratio above 0.1; more memory"
REMEDIES: dict[str, dict[str, str]] = {
    "vllm": _VLLM,
    "vllm-v4:dense": _VLLM | {"evicted_block": _SPARSE, "evicted_checkpoint": _SPARSE},
    "vllm-v4:4096": _VLLM
    | {
        "evicted_block": _LAST,
        "evicted_checkpoint": _LAST,
        "no_checkpoint": f"a shorter {_RETENTION}, where memory is left",
    },
    "vllm-v4:semantic": _VLLM
    | {
        "evicted_checkpoint": "more memory: --gpu-memory-utilization",
        "no_checkpoint": f"{_RETENTION} 4096 (vllm-v4:4096)",
    },
    "vllm-v41": _VLLM
    | {"replay": "--no-swa-bounded-replay keeps windows; longer shared prefixes"},
    "sglang": _SGLANG,
    "sglang-v4:dense": _SGLANG
    | {
        "evicted_block": f"windows of the last pages only (sglang-v4:tail); {_RATIO}",
        "evicted_checkpoint": _RATIO,
        "no_checkpoint": _RATIO,
    },
    "sglang-v4:tail": _SGLANG
    | {
        "evicted_checkpoint": _RATIO,
        "no_checkpoint": f"windows of whole prompts (sglang-v4:dense) with {_RATIO}",
    },
    "sglang-v41": _SGLANG
    | {
        "evicted_checkpoint": _RATIO,
        "last_token": "--no-enable-decoder-swa-bounded-replay (sglang-v4:tail)",
        "no_checkpoint": "--enable-encoder-swa-bounded-replay (sglang-v41:encoder)",
    },
    "sglang-v41:encoder": _SGLANG
    | {"replay": "keep windows (sglang-v41); longer shared prefixes"},
}
"""By rule; where a rule says nothing it is what the toolkit's own settings do."""


def remedy_of(rule: str, reason: str) -> str:
    """Return what wins back tokens lost for ``reason`` under ``rule``."""
    return REMEDIES.get(rule, {}).get(reason, _OWN[reason])
