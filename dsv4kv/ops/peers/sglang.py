"""SGLang: a gather by index, of its DeepSeek-V4 prefill (seen in 0.5.23).

It reads every index it is given and writes every output row. In addition to the kernel a call
therefore makes indices of the physical entries, with entry 0 for missing ones, and writes zeros to
the rows of those afterwards. Its insert writes for −1 too, outside the pool, and is not used.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4kv.ops.peers.foreign import Foreign, Operation, find_function, version_of
from dsv4kv.ops.storage import PageStore

_PLACES = (
    "sglang.kernels.ops.attention.dsv4.dequant_k_cache:dequantize_k_cache_paged_dsv4",
    "sglang.kernels.ops.attention.dsv4.dequant_k_cache:dequantize_k_cache_paged",
    "sglang.srt.layers.attention.dsv4.dequant_k_cache:dequantize_k_cache_paged",
)


def load() -> Foreign:
    """See ``peers.load_peer``."""
    gather = find_function("sglang", "sglang", _PLACES)
    return Foreign(
        operations=_bridge(gather),
        version=version_of("sglang"),
        formats=("fp8_ds_mla",),
        bridging=_bridge(lambda *_, **__: None),
    )


def _bridge(gather: Callable[..., Any]) -> dict[str, Operation]:
    def gather_entries(store: PageStore, entries: Tensor, valid: Tensor, out: Tensor) -> None:
        """Entries int64[B, K] where bool[B, K] says so, zeros elsewhere: out bf16[B, K, 512]."""
        chosen = entries.where(valid, 0).view(-1)
        gather(store.pages, chosen, store.layout.entries, out=out.view(-1, 1, out.shape[-1]))
        out.masked_fill_(~valid[:, :, None], 0)

    def gather_topk(
        store: PageStore,
        table: Tensor,
        slots: Tensor,
        indices: Tensor,
        lengths: Tensor,
        out: Tensor,
    ) -> None:
        size = store.layout.entries
        valid = (indices >= 0) & (indices < lengths[:, None])
        logical = indices.where(valid, 0)
        blocks = table[slots[:, None], logical // size].long()
        gather_entries(store, blocks * size + logical % size, valid, out)

    def gather_all(
        store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
    ) -> None:
        indices = torch.arange(out.shape[1], device=out.device).expand(len(slots), -1)
        gather_topk(store, table, slots, indices, lengths, out)

    def gather_window(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
        size, window = ring.layout.entries, out.shape[1]
        first = (tokens - window).clamp(min=0)
        positions = first[:, None] + torch.arange(window, device=out.device)
        entries = slots[:, None] * size + positions % size
        gather_entries(ring, entries, positions < tokens[:, None], out)

    return {
        "gather_topk": gather_topk,
        "gather_all": gather_all,
        "gather_window": gather_window,
    }
