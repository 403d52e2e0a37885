"""The literal backend: every contract written out token by token, in float64 where it matters.

Too slow to serve anything; it decides what is right.
"""

import math

import torch
from torch import Tensor

from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Parts
from dsv4kv.ops.reference_pages import read, read_bytes, rotate, write
from dsv4kv.ops.reference_reads import (
    attend,
    index_scores,
    indexer_query,
    select_blocks,
    select_topk,
)
from dsv4kv.ops.storage import PageStore


def window_insert(ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor) -> None:
    """See ``contract.Backend.window_insert``."""
    order = sorted(range(len(slots)), key=lambda t: int(positions[t]))
    for t in order:
        if slots[t] >= 0:
            row = int(positions[t]) % ring.layout.entries
            write(ring, int(slots[t]) * ring.layout.entries + row, values[t])


def entry_insert(store: PageStore, values: Tensor, entries: Tensor) -> None:
    """See ``contract.Backend.entry_insert``."""
    for value, entry in zip(values, entries.tolist(), strict=True):
        if 0 <= entry < store.num_entries:
            write(store, entry, value)


def indexer_insert(store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool) -> None:
    """See ``contract.Backend.indexer_insert``."""
    entry_insert(store, rotate(keys.double()) if hadamard else keys, entries)


def norm_rope_insert(
    compressor: Compressor, values: Tensor, positions: Tensor, store: PageStore, entries: Tensor
) -> None:
    """See ``contract.Backend.norm_rope_insert``."""
    for value, position, entry in zip(values, positions.tolist(), entries.tolist(), strict=True):
        if entry >= 0:
            first = position + 1 - compressor.ratio
            made = finish(compressor, value.double(), first)
            entry_insert(store, made[None], torch.tensor([entry]))


def state_append(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> None:
    """See ``contract.Backend.state_append``."""
    for t, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        if slot < 0:
            continue
        biased = score[t] + compressor.ape[position % compressor.ratio]
        if state.dim() == 4:
            state[slot, 0, position % state.shape[2]] = kv[t]
            state[slot, 1, position % state.shape[2]] = biased
        else:
            _fold(state[slot], kv[t], biased, fresh=position % compressor.ratio == 0)


def flush(
    compressor: Compressor,
    state: Tensor,
    slots: Tensor,
    positions: Tensor,
    store: PageStore,
    entries: Tensor,
) -> None:
    """See ``contract.Backend.flush``."""
    for slot, position, entry in zip(
        slots.tolist(), positions.tolist(), entries.tolist(), strict=True
    ):
        if state.dim() == 4:
            kv, score = _group_rows(compressor, state[slot], position)
            pooled = pool(kv, score)
        else:
            _, denominator, weighted = state[slot].double()
            pooled = weighted / denominator
        first = position + 1 - compressor.ratio
        entry_insert(store, finish(compressor, pooled, first)[None], torch.tensor([entry]))


def step_write(
    ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor, parts: Parts
) -> None:
    """See ``contract.Backend.step_write``."""
    window_insert(ring, values, slots, positions)
    for part in parts:
        state_append(part.compressor, part.state, part.kv, part.score, slots, positions)
        done = part.entries >= 0
        group = slots[done], positions[done]
        flush(part.compressor, part.state, *group, part.store, part.entries[done])


def compress_chunk(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slot: int,
    start: int,
    store: PageStore,
    entries: Tensor,
) -> None:
    """See ``contract.Backend.compress_chunk``."""
    slots = torch.tensor([slot])
    for t in range(len(kv)):
        position = torch.tensor([start + t])
        token = slice(t, t + 1)
        state_append(compressor, state, kv[token], score[token], slots, position)
        if (start + t + 1) % compressor.ratio == 0:
            done = (start + t) // compressor.ratio - start // compressor.ratio
            entry = entries[done : done + 1]
            flush(compressor, state, slots, position, store, entry)


def gather_topk(
    store: PageStore, table: Tensor, slots: Tensor, indices: Tensor, lengths: Tensor, out: Tensor
) -> None:
    """See ``contract.Backend.gather_topk``."""
    out.zero_()
    for b, slot in enumerate(slots.tolist()):
        for k, index in enumerate(indices[b].tolist()):
            if 0 <= index < lengths[b]:
                block = int(table[slot, index // store.layout.entries])
                entry = block * store.layout.entries + index % store.layout.entries
                out[b, k] = read(store, entry)


def gather_all(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    """See ``contract.Backend.gather_all``."""
    indices = torch.arange(out.shape[1], dtype=torch.int32).expand(len(slots), -1)
    gather_topk(store, table, slots, indices, lengths, out)


def gather_window(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
    """See ``contract.Backend.gather_window``."""
    out.zero_()
    size = ring.layout.entries
    for b, (slot, count) in enumerate(zip(slots.tolist(), tokens.tolist(), strict=True)):
        first = max(0, count - out.shape[1])
        for position in range(first, count):
            out[b, position - first] = read(ring, slot * size + position % size)


def page_copy(store: PageStore, sources: Tensor, targets: Tensor) -> None:
    """See ``contract.Backend.page_copy``."""
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        store.pages[target] = store.pages[source]


def pool(kv: Tensor, score: Tensor) -> Tensor:
    """Softmax over rows per channel and weighted sum, float64: kv, score [rows, d] to [d]."""
    weight = torch.softmax(score.double(), dim=0)
    return (weight * kv.double()).sum(dim=0)


def finish(compressor: Compressor, pooled: Tensor, position: int) -> Tensor:
    """RMSNorm, RoPE at ``position``, Hadamard where asked: float64[d] to bf16[d].

    To float64[d] where the compressor says that what RoPE gives is not rounded.
    """
    scale = 1.0 / math.sqrt(float(pooled.square().mean()) + compressor.norm_eps)
    normed = pooled * scale * compressor.norm_weight.double()
    if compressor.round_norm:
        normed = normed.bfloat16().double()
    turns = _turns(compressor, position)
    tail = compressor.dim - 2 * len(turns)
    for i, (cos, sin) in enumerate(turns):
        real, imaginary = float(normed[tail + 2 * i]), float(normed[tail + 2 * i + 1])
        normed[tail + 2 * i] = real * cos - imaginary * sin
        normed[tail + 2 * i + 1] = real * sin + imaginary * cos
    if not compressor.round_rope:
        return normed
    rounded = normed.bfloat16()
    return rotate(rounded.double()) if compressor.hadamard else rounded


def _turns(compressor: Compressor, position: int) -> list[tuple[float, float]]:
    """Cosine and sine of each pair's angle at the first position of a group."""
    if compressor.has_table:
        row = compressor.rope[position // compressor.ratio].tolist()
        return list(zip(row[: len(row) // 2], row[len(row) // 2 :], strict=True))
    angles = [position * frequency for frequency in compressor.rope.tolist()]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def group_of_tokens(compressor: Compressor, kv: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that one entry pools, from its tokens in order, scores biased: [rows, C] to [rows, d].

    With overlap the first ``ratio`` tokens give their first half, the others their second.
    """
    if not compressor.overlap:
        return kv, score
    m, d = compressor.ratio, compressor.dim
    return torch.cat([kv[:m, :d], kv[m:, d:]]), torch.cat([score[:m, :d], score[m:, d:]])


def _group_rows(compressor: Compressor, state: Tensor, position: int) -> tuple[Tensor, Tensor]:
    tokens = [
        (position + 1 - compressor.rows + i) % state.shape[1] for i in range(compressor.rows)
    ]
    return group_of_tokens(compressor, state[0, tokens], state[1, tokens])


def _fold(state: Tensor, kv: Tensor, score: Tensor, *, fresh: bool) -> None:
    """Fold one token into (max, denominator, weighted sum), each float32[d]."""
    if fresh:
        state[0], state[1], state[2] = score, 1.0, kv
        return
    top = torch.maximum(state[0], score)
    old, new = torch.exp(state[0] - top), torch.exp(score - top)
    state[1] = state[1] * old + new
    state[2] = state[2] * old + new * kv
    state[0] = top


__all__ = [
    "attend",
    "compress_chunk",
    "entry_insert",
    "finish",
    "flush",
    "gather_all",
    "gather_topk",
    "gather_window",
    "group_of_tokens",
    "index_scores",
    "indexer_insert",
    "indexer_query",
    "norm_rope_insert",
    "page_copy",
    "pool",
    "read_bytes",
    "rotate",
    "select_blocks",
    "select_topk",
    "state_append",
    "step_write",
    "window_insert",
]
