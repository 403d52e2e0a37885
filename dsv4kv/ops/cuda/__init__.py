"""The backend on NVIDIA GPUs: every operation is its launch plan, launched.

Nothing here waits for the GPU, and importing it needs none. A loop that has to be fast, or is
captured in a graph, plans once and calls what ``launch.prepare`` returns. An operation that can
be done in several ways takes one of them as ``variant``, or the best of its GPU.
"""

import functools

import torch
from torch import Tensor

from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Parts, write_in_turn
from dsv4kv.ops.cpu_reads import (
    attend,
    index_scores,
    indexer_query,
    select_blocks,
    select_topk,
)
from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.kernels.gather import plan_gather_all, plan_gather_topk, plan_gather_window
from dsv4kv.ops.kernels.insert import (
    plan_entry_insert,
    plan_indexer_insert,
    plan_page_copy,
    plan_window_insert,
)
from dsv4kv.ops.kernels.state import (
    plan_compress_chunk,
    plan_flush,
    plan_norm_rope_insert,
    plan_state_append,
    plan_step_write,
    split_of,
)
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.table import best, portable


def window_insert(
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    *,
    variant: str | None = None,
) -> None:
    """See ``contract.Backend.window_insert``; tokens of a slot stand together, in order."""
    variant = variant or _best("window_insert", slots)
    run(plan_window_insert(ring, values, slots, positions, variant=variant))


def entry_insert(
    store: PageStore, values: Tensor, entries: Tensor, *, variant: str | None = None
) -> None:
    """See ``contract.Backend.entry_insert``."""
    variant = variant or _best("entry_insert", entries)
    run(plan_entry_insert(store, values, entries, variant=variant))


def indexer_insert(store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool) -> None:
    """See ``contract.Backend.indexer_insert``."""
    run(plan_indexer_insert(store, keys, entries, hadamard))


def norm_rope_insert(
    compressor: Compressor, values: Tensor, positions: Tensor, store: PageStore, entries: Tensor
) -> None:
    """See ``contract.Backend.norm_rope_insert``."""
    run(plan_norm_rope_insert(compressor, values, positions, store, entries))


def state_append(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> None:
    """See ``contract.Backend.state_append``."""
    run(plan_state_append(compressor, state, kv, score, slots, positions))


def flush(
    compressor: Compressor,
    state: Tensor,
    slots: Tensor,
    positions: Tensor,
    store: PageStore,
    entries: Tensor,
    *,
    variant: str | None = None,
) -> None:
    """See ``contract.Backend.flush``."""
    split, scratch = split_of(compressor), _scratch(compressor, entries)
    for launch in plan_flush(
        compressor,
        state,
        slots,
        positions,
        store,
        entries,
        variant=variant or _best("flush", entries),
        split=split,
        scratch=scratch,
    ):
        run(launch)


def step_write(
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    parts: Parts,
    *,
    variant: str | None = None,
) -> None:
    """See ``contract.Backend.step_write``."""
    tokens = ring, values, slots, positions, parts
    if (variant or _best("step_write", slots)) == "separate":
        write_in_turn(window_insert, state_append, flush, *tokens)
        return
    scratch = _scratch(parts[0].compressor, slots)
    room = 1 << (len(slots) - 1).bit_length()
    run(plan_step_write(*tokens, scratch=scratch, arrivals=_arrivals(slots.device, room)))


def compress_chunk(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slot: int,
    start: int,
    store: PageStore,
    entries: Tensor,
    *,
    variant: str | None = None,
) -> None:
    """See ``contract.Backend.compress_chunk``."""
    numbers = torch.tensor([slot, start, len(kv)], pin_memory=kv.is_cuda)  # or the copy waits
    chunk = numbers.to(kv.device, non_blocking=True)
    split, scratch = split_of(compressor), _scratch(compressor, entries)
    for launch in plan_compress_chunk(
        compressor,
        state,
        kv,
        score,
        chunk,
        store,
        entries,
        variant=variant or _best("compress_chunk", entries),
        split=split,
        scratch=scratch,
    ):
        run(launch)


def gather_topk(
    store: PageStore,
    table: Tensor,
    slots: Tensor,
    indices: Tensor,
    lengths: Tensor,
    out: Tensor,
    *,
    variant: str | None = None,
) -> None:
    """See ``contract.Backend.gather_topk``."""
    variant = variant or _best("gather_topk", out)
    run(plan_gather_topk(store, table, slots, indices, lengths, out, variant=variant))


def gather_all(
    store: PageStore,
    table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    *,
    variant: str | None = None,
) -> None:
    """See ``contract.Backend.gather_all``."""
    variant = variant or _best("gather_all", out)
    run(plan_gather_all(store, table, slots, lengths, out, variant=variant))


def gather_window(
    ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor, *, variant: str | None = None
) -> None:
    """See ``contract.Backend.gather_window``."""
    variant = variant or _best("gather_window", out)
    run(plan_gather_window(ring, slots, tokens, out, variant=variant))


def page_copy(store: PageStore, sources: Tensor, targets: Tensor) -> None:
    """See ``contract.Backend.page_copy``."""
    run(plan_page_copy(store, sources, targets))


def _best(operation: str, tensor: Tensor) -> str:
    """The variant to use where nobody says; off a GPU, what every GPU has."""
    if not tensor.is_cuda:
        return portable(operation)
    return best(operation, architecture_of(*torch.cuda.get_device_capability(tensor.device)))


def _scratch(compressor: Compressor, entries: Tensor) -> Tensor:
    """Where the blocks that share an entry meet; from torch's cache, so mostly no allocation."""
    return torch.empty(len(entries), compressor.dim, device=entries.device)


@functools.cache
def _arrivals(device: torch.device, tokens: int) -> Tensor:
    """Zeros, one set of them for each size: every launch leaves them as it found them."""
    return torch.zeros(tokens, dtype=torch.int32, device=device)


__all__ = [
    "attend",
    "compress_chunk",
    "entry_insert",
    "flush",
    "gather_all",
    "gather_topk",
    "gather_window",
    "index_scores",
    "indexer_insert",
    "indexer_query",
    "norm_rope_insert",
    "page_copy",
    "select_blocks",
    "select_topk",
    "state_append",
    "step_write",
    "window_insert",
]
