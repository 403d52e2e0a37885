"""vLLM: gather by request and insert, of its DeepSeek-V4 cache utilities (seen in 0.33).

A gather of chosen entries it has only inside attention kernels, so ``gather_topk`` is missing.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dsv4kv.ops.peers.foreign import Foreign, Operation, find_function, paged_gathers, version_of
from dsv4kv.ops.storage import PageStore

_MODULES = (
    "vllm.models.deepseek_v4.common.ops.cache_utils",
    "vllm.v1.attention.ops.deepseek_v4_ops",
)
_ENTRY_BYTES = 584


def load() -> Foreign:
    """See ``peers.load_peer``."""
    names = ("dequantize_and_gather_k_cache", "quantize_and_insert_k_cache")
    gather, insert = (
        find_function("vllm", "vllm", [f"{module}:{name}" for module in _MODULES])
        for name in names
    )
    return Foreign(
        operations=_bridge(gather, insert),
        version=version_of("vllm"),
        formats=("fp8_ds_mla",),
        bridging=_bridge(_nothing, _nothing),
    )


def _bridge(gather: Callable[..., Any], insert: Callable[..., Any]) -> dict[str, Operation]:
    def paged(
        out: Tensor,
        store: PageStore,
        seq_lens: Tensor,
        gather_lens: Tensor | None,
        block_table: Tensor,
    ) -> None:
        shape = (len(store.pages), store.layout.entries, _ENTRY_BYTES)
        cache = store.pages.as_strided(shape, (store.layout.page_bytes, _ENTRY_BYTES, 1))
        gather(out, cache, seq_lens, gather_lens, block_table, store.layout.entries, 0)

    def entry_insert(store: PageStore, values: Tensor, entries: Tensor) -> None:
        inside = (entries >= 0) & (entries < store.num_entries)
        insert(values, store.pages, entries.where(inside, -1), store.layout.entries)

    def window_insert(ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor) -> None:
        size = ring.layout.entries
        rows = (slots * size + positions % size).where(slots >= 0, -1)
        if len(rows) > size:  # a token is replaced at once where its slot has one a ring later
            rows[:-size].masked_fill_(slots[:-size] == slots[size:], -1)
        insert(values, ring.pages, rows, size)

    return {
        **paged_gathers(paged),
        "entry_insert": entry_insert,
        "window_insert": window_insert,
    }


def _nothing(*_: object) -> None:
    """Stands for the package's function where only what is around it is timed."""
