"""DeepGEMM: an indexer's scores of FP8 keys (sgl-deep-gemm 0.2.5, vLLM 0.33.0's copy).

On Hopper, of pages of 64 keys. Each query token is a request of its own, as in SGLang 0.5.23. In
addition to the kernel a call therefore makes table rows, lengths as int32 and a plan, and copies
the scores from the kernel's output, −inf where there is no key. Blocks are picked from the scores
of all keys, which is what engines do where they have no kernel for chosen blocks.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4kv.ops.peers.foreign import Foreign, Operation, find_function, installed, version_of
from dsv4kv.ops.storage import PageStore

_PACKAGES = {"deep_gemm": "sgl-deep-gemm", "vllm": "vllm"}
_MODULES = ("deep_gemm", "vllm.third_party.deep_gemm")


def load() -> Foreign:
    """See ``peers.load_peer``."""
    package = installed(_PACKAGES)
    score, plan, multiprocessors = (
        find_function(
            "deepgemm", package, [f"{m}:{name}" for m in _MODULES], distribution=_PACKAGES[package]
        )
        for name in (
            "fp8_fp4_paged_mqa_logits",
            "get_paged_mqa_logits_metadata",
            "get_num_sms",
        )
    )
    return Foreign(
        operations=_bridge(score, plan, multiprocessors),
        version=version_of(_PACKAGES[package]),
        formats=("fp8",),
        bridging=_bridge(_nothing, lambda *_: None, lambda: 0),
    )


def _bridge(
    kernel: Callable[..., Any], plan: Callable[..., Any], multiprocessors: Callable[[], int]
) -> dict[str, Operation]:
    def index_scores(
        store: PageStore,
        table: Tensor,
        slots: Tensor,
        lengths: Tensor,
        queries: Tensor,
        weights: Tensor,
        blocks: Tensor | None,
        out: Tensor,
    ) -> None:
        size, entry_bytes = store.layout.entries, store.layout.format.entry_bytes
        seen = lengths.where(slots >= 0, 0).int()[:, None]
        some = seen.clamp(min=1)  # no row is empty; the one key is left out of the result
        rows = table[slots].masked_fill_(seen == 0, 0)
        width = table.shape[1] * size if blocks is not None else out.shape[1]
        scores = kernel(
            (queries.view(torch.float8_e4m3fn)[:, None], None),
            store.pages.view(-1, size, 1, entry_bytes),
            weights,
            some,
            rows,
            plan(some, size, multiprocessors()),
            width,
        )
        keys = torch.arange(width, device=out.device)
        scores = scores[:, :width].float().masked_fill_(keys >= seen, -math.inf)
        out.copy_(scores if blocks is None else _picked(scores, blocks, out.shape[1]))

    return {"index_scores": index_scores}


def _picked(scores: Tensor, blocks: Tensor, width: int) -> Tensor:
    """Scores of the keys of chosen blocks, −inf where there is none: float32[T, width]."""
    within = torch.arange(width // blocks.shape[1], device=scores.device)
    keys = (blocks.long()[:, :, None] * len(within) + within).flatten(1)
    valid = (keys >= 0) & (keys < scores.shape[1])
    return scores.gather(1, keys.where(valid, 0)).masked_fill_(~valid, -math.inf)


def _nothing(query: Any, cache: Tensor, weights: Tensor, *others: Any) -> Tensor:
    """Stands for the kernel where only what is around it is timed."""
    return weights.new_empty(len(weights), others[-1])
