"""What vLLM holds on a GPU other than weights and cache, as far as its code says how much.

One workspace is shared by all layers and is as large as the largest request for it, rounded up
to 256 B a tensor. Of several backends FlashMLA's is known.
Source: vLLM 0.33.0: ``flashmla.py``, ``sparse_mla.py`` and ``attention.py`` of
``models/deepseek_v4``, ``flash_mla_mega_attn.py`` of ``models/deepseek_v41``,
``model_executor/layers/sparse_attn_indexer.py``, ``v1/worker/workspace.py``, ``config/vllm.py``.
"""

from collections.abc import Iterable
from math import prod

from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.overhead import UNKNOWN, Held, Overhead

_GATHERED_PROMPTS = 4  # PREFILL_CHUNK_SIZE
_LONG_CONTEXT = 256 * 1024
_RADIX_BYTES = 1024 * 1024
_FLASHINFER_BYTES = 128 * 1024 * 1024  # _FLASHINFER_DSV4_WORKSPACE_BUFFER_SIZE
_TOPK_ALIGN = 128

_Tensor = tuple[int, ...]
"""Its shape, and the bytes of an element."""


def overhead_of(deployment: Deployment, step_tokens: int, *, flashinfer: bool = False) -> Overhead:
    """Workspace and buffers of one rank for a step of so many tokens, by backend."""
    if flashinfer:
        own = Held(
            "workspace of FlashInfer", _FLASHINFER_BYTES, "vLLM 0.33.0: flashinfer_sparse.py"
        )
        return Overhead((own,), (), UNKNOWN.unknown)
    reserve = [
        Held(
            "workspace of prompts",
            workspace_bytes(deployment, step_tokens),
            "vLLM 0.33.0: four prompts' KV in bf16, or keys of the indexer",
        ),
        Held(
            "choices of the indexer",
            step_tokens * deployment.model.index_topk * 4,
            "vLLM 0.33.0: topk_indices_buffer",
        ),
    ]
    if 128 in deployment.model.compress_ratios:
        reserve.append(
            Held(
                "indices of HCA entries",
                hca_index_bytes(deployment, step_tokens),
                "vLLM 0.33.0: two c128a buffers, for prompts and for decoding",
            )
        )
    return Overhead(tuple(reserve), (), UNKNOWN.unknown)


def workspace_bytes(deployment: Deployment, step_tokens: int) -> int:
    """Bytes of the one workspace."""
    model, context = deployment.model, deployment.max_context_tokens
    ratio = min(filter(None, model.compress_ratios))
    keys = context * (576 * 2 // 132) * (5 if context <= _LONG_CONTEXT else 2) // ratio
    key = deployment.formats.indexer
    wanted = [_sum([(keys, key.value_bytes, 1), (keys, key.scale_bytes, 1), (_RADIX_BYTES, 1)])]
    if model.kind != "flat":
        rows = -(-context // ratio) + model.window_tokens + step_tokens
        chosen = _align(model.index_topk + model.window_tokens, _TOPK_ALIGN)
        gathered = (_GATHERED_PROMPTS, rows, model.head_dim, 2)
        wanted.append(_sum([gathered, (step_tokens, chosen, 4), (step_tokens, 4)]))
    return max(wanted)


def hca_index_bytes(deployment: Deployment, step_tokens: int) -> int:
    """Bytes of two rows of indices and a length for every token of a step."""
    width = _align(-(-deployment.max_context_tokens // 128), _TOPK_ALIGN)
    return step_tokens * (2 * width + 1) * 4


def _sum(tensors: Iterable[_Tensor]) -> int:
    return sum(_align(prod(tensor), 256) for tensor in tensors)


def _align(value: int, step: int) -> int:
    return -(-value // step) * step
