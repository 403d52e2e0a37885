"""The backend on NVIDIA GPUs: every operation is its launch plan, launched.

Nothing here waits for the GPU, and importing it needs none. A loop that has to be fast, or is
captured in a graph, plans once and calls what ``launch.prepare`` returns. An operation that can
be done in several ways takes one of them as ``variant``, or the best of its GPU.
"""

import functools

import torch
from torch import Tensor

from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Entries, Parts, write_in_turn
from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.cuda.launch import run
from dsv4kv.ops.kernels.attend import parts_of, plan_attend, scratch_floats, shape_of
from dsv4kv.ops.kernels.gather import plan_gather_all, plan_gather_topk, plan_gather_window
from dsv4kv.ops.kernels.insert import (
    plan_entry_insert,
    plan_indexer_insert,
    plan_page_copy,
    plan_window_insert,
)
from dsv4kv.ops.kernels.scores import plan_index_scores, plan_indexer_query
from dsv4kv.ops.kernels.state import (
    plan_compress_chunk,
    plan_flush,
    plan_norm_rope_insert,
    plan_state_append,
    plan_step_write,
    split_of,
)
from dsv4kv.ops.kernels.topk import plan_select_blocks, plan_select_topk, scratch_shape
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.variants import best, portable


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


def indexer_query(
    queries: Tensor,
    weights: Tensor,
    turns: Tensor,
    hadamard: bool,
    out: Tensor,
    out_weights: Tensor,
) -> None:
    """See ``contract.Backend.indexer_query``."""
    run(plan_indexer_query(queries, weights, turns, hadamard, out, out_weights))


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
    """See ``contract.Backend.index_scores``."""
    run(plan_index_scores(store, table, slots, lengths, queries, weights, blocks, out))


def select_blocks(scores: Tensor, lengths: Tensor, block_entries: int, out: Tensor) -> None:
    """See ``contract.Backend.select_blocks``."""
    room = scratch_shape(-(-scores.shape[1] // block_entries), out)
    scratch = torch.empty(room, dtype=torch.int32, device=out.device)
    for launch in plan_select_blocks(scores, lengths, block_entries, out, scratch=scratch):
        run(launch)


def select_topk(
    scores: Tensor,
    lengths: Tensor,
    blocks: Tensor | None,
    table: Tensor,
    slots: Tensor,
    page_entries: int,
    out: Tensor,
    entries: Tensor,
) -> None:
    """See ``contract.Backend.select_topk``."""
    room = scratch_shape(scores.shape[1], out)
    scratch = torch.empty(room, dtype=torch.int32, device=out.device)
    choices = out, entries
    for launch in plan_select_topk(
        scores, lengths, blocks, table, slots, page_entries, *choices, scratch=scratch
    ):
        run(launch)


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
    """See ``contract.Backend.attend``."""
    shape = shape_of(queries)
    parts = parts_of(queries, window, entries, shape)
    scratch = torch.empty(scratch_floats(queries, parts), device=queries.device)
    seen, how = (ring, slots, tokens, window, entries), (queries, sinks, scale)
    for launch in plan_attend(*seen, *how, out, lse, shape=shape, parts=parts, scratch=scratch):
        run(launch)


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
