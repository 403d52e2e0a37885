"""FlashMLA: attention to window and compressed entries (sgl-flash-mla 1.0.0, vLLM 0.33.0's copy).

It takes every entry by its physical index. In addition to the kernel a call therefore makes
indices of the window's and the compressed entries, in rows of 64, and a plan, as lengths may have
changed since the last call; and it copies the kernel's output and lse.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4kv.ops.contract import Entries
from dsv4kv.ops.peers.foreign import Foreign, Operation, find_function, installed, version_of
from dsv4kv.ops.storage import PageStore

_PACKAGES = {"flash_mla": "sgl-flash-mla", "vllm": "vllm"}
_MODULES = ("flash_mla.flash_mla_interface", "vllm.third_party.flashmla.flash_mla_interface")
_ENTRY_BYTES, _ROW = 584, 64


def load() -> Foreign:
    """See ``peers.load_peer``."""
    package = installed(_PACKAGES)
    attend, plan = (
        find_function(
            "flashmla", package, [f"{m}:{name}" for m in _MODULES], distribution=_PACKAGES[package]
        )
        for name in ("flash_mla_with_kvcache", "get_mla_metadata")
    )
    return Foreign(
        operations=_bridge(attend, plan),
        version=version_of(_PACKAGES[package]),
        formats=("fp8_ds_mla",),
        bridging=_bridge(_nothing, lambda: (None, None)),
    )


def _bridge(kernel: Callable[..., Any], plan: Callable[[], Any]) -> dict[str, Operation]:
    def attend(
        ring: PageStore,
        slots: Tensor,
        tokens: Tensor,
        window: int,
        entries: Entries | None,
        queries: Tensor,
        sinks: Tensor,
        scale: float,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        found, sums = kernel(
            queries[:, None],
            _pages(ring),
            None,
            None,
            out.shape[-1],
            plan()[0],
            softmax_scale=scale,
            is_fp8_kvcache=True,
            indices=_window(ring, slots, tokens, window),
            attn_sink=sinks,
            extra_k_cache=_pages(entries.store) if entries else None,
            extra_indices_in_kvcache=_compressed(entries, slots) if entries else None,
        )
        out.copy_(found[:, 0])
        lse.copy_(sums[:, :, 0])

    return {"attend": attend}


def _pages(store: PageStore) -> Tensor:
    """The pool itself as uint8[pages, entries, 1, 584]: the kernels know where rows are in it."""
    size, stride = store.layout.entries, store.layout.page_bytes
    shape = (len(store.pages), size, 1, _ENTRY_BYTES)
    return store.pages.as_strided(shape, (stride, _ENTRY_BYTES, _ENTRY_BYTES, 1))


def _window(ring: PageStore, slots: Tensor, tokens: Tensor, window: int) -> Tensor:
    size = ring.layout.entries
    positions = tokens[:, None] - window + torch.arange(window, device=tokens.device)
    valid = (positions >= 0) & (slots[:, None] >= 0)
    return _rows((slots[:, None] * size + positions % size).where(valid, -1))


def _compressed(entries: Entries, slots: Tensor) -> Tensor:
    size, table = entries.store.layout.entries, entries.table[slots]
    indices = entries.indices
    if indices is None:
        indices = torch.arange(table.shape[1] * size, device=table.device).expand(len(slots), -1)
    seen = entries.lengths.where(slots >= 0, 0)[:, None]
    valid = (indices >= 0) & (indices < seen)
    logical = indices.long().where(valid, 0)
    physical = table.gather(1, logical // size).long() * size + logical % size
    return _rows(physical.where(valid, -1))


def _rows(indices: Tensor) -> Tensor:
    """int32[T, 1, K], K the next multiple of 64."""
    spare = -indices.shape[1] % _ROW
    return torch.nn.functional.pad(indices.int(), (0, spare), value=-1)[:, None]


def _nothing(queries: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
    """Stands for the kernel where only what is around it is timed."""
    return queries, queries[..., 0].transpose(1, 2)
