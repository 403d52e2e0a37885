"""Launch plan of indexer keys going in. They come out like any other entries."""

from torch import Tensor

from dsv4kv.ops.kernels.insert import plan_entry_insert
from dsv4kv.ops.kernels.launch import MOST_BLOCKS, WARP, KernelModule, Launch, blocks_for
from dsv4kv.ops.kernels.macros import format_macros
from dsv4kv.ops.storage import PageStore

_THREADS = 256


def plan_indexer_insert(store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool) -> Launch:
    """See ``contract.Backend.indexer_insert``."""
    if not hadamard:
        return plan_entry_insert(store, keys, entries)
    return Launch(
        KernelModule("indexer.cuh", format_macros(store.layout)),
        "indexer_insert",
        (blocks_for(len(entries), _THREADS // WARP, MOST_BLOCKS), 1),
        _THREADS,
        (store.pages, keys, entries, len(entries), store.num_entries),
    )
