"""Launch plans of inserts: one warp quantises and writes one entry."""

from torch import Tensor

from dsv4kv.ops.kernels.launch import MOST_BLOCKS, WARP, KernelModule, Launch, blocks_for
from dsv4kv.ops.kernels.macros import format_macros
from dsv4kv.ops.storage import PageStore

_THREADS = 256


def plan_window_insert(
    ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor
) -> Launch:
    """See ``contract.Backend.window_insert``.

    Tokens of a slot must be consecutive in the call, by ascending position without gaps: then the
    token that replaces another in its ring row is a fixed distance further on, and no two warps
    write one row.
    """
    return Launch(
        KernelModule("insert.cuh", format_macros(ring.layout)),
        "window_insert",
        (blocks_for(len(slots), _THREADS // WARP, MOST_BLOCKS), 1),
        _THREADS,
        (ring.pages, values, slots, positions, len(slots), len(ring.pages)),
    )


def plan_entry_insert(store: PageStore, values: Tensor, entries: Tensor) -> Launch:
    """See ``contract.Backend.entry_insert``."""
    return Launch(
        KernelModule("insert.cuh", format_macros(store.layout)),
        "entry_insert",
        (blocks_for(len(entries), _THREADS // WARP, MOST_BLOCKS), 1),
        _THREADS,
        (store.pages, values, entries, len(entries), store.num_entries),
    )
