"""The fast backend in torch eager: the default where there is no GPU.

The reference CPU backend: right, and as fast as eager operations go; not a performance claim.
"""

from dsv4kv.ops.cpu.compression import compress_chunk, flush, state_append
from dsv4kv.ops.cpu.entries import (
    entry_insert,
    gather_all,
    gather_topk,
    gather_window,
    indexer_insert,
    page_copy,
    window_insert,
)
from dsv4kv.ops.cpu.steps import step_write

__all__ = [
    "compress_chunk",
    "entry_insert",
    "flush",
    "gather_all",
    "gather_topk",
    "gather_window",
    "indexer_insert",
    "page_copy",
    "state_append",
    "step_write",
    "window_insert",
]
