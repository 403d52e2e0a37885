"""The reads of a decode step, literally: token by token and entry by entry, in float64."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import reference_codec
from dsv4kv.ops.contract import Entries
from dsv4kv.ops.reference_pages import read, rotate
from dsv4kv.ops.storage import PageStore


def indexer_query(
    queries: Tensor,
    weights: Tensor,
    turns: Tensor,
    hadamard: bool,
    out: Tensor,
    out_weights: Tensor,
) -> None:
    """See ``contract.Backend.indexer_query``."""
    tokens, heads, dims = queries.shape
    constant = torch.tensor((heads * dims) ** -0.5)
    for t in range(tokens):
        for h in range(heads):
            turned = _turn(queries[t, h].double(), turns[t].tolist()).bfloat16()
            made = rotate(turned.double()) if hadamard else turned
            data, scale = reference_codec.encode(QUERY, made.tolist())
            out[t, h] = torch.tensor(list(data), dtype=torch.uint8)
            (factor,) = reference_codec.decode_scales(QUERY, scale)
            out_weights[t, h] = weights[t, h] * factor * constant


QUERY = FORMATS["indexer"]["fp8"]
"""How a head's vector is quantised; its scale is no part of it."""


def _turn(values: Tensor, turns: list[float]) -> Tensor:
    """Rotate the last pairs of values, float64[D], by cosines and sines."""
    pairs = len(turns) // 2
    first = len(values) - 2 * pairs
    for i, (cos, sin) in enumerate(zip(turns[:pairs], turns[pairs:], strict=True)):
        real, imaginary = float(values[first + 2 * i]), float(values[first + 2 * i + 1])
        values[first + 2 * i] = real * cos - imaginary * sin
        values[first + 2 * i + 1] = real * sin + imaginary * cos
    return values


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
    values = torch.tensor((*reference_codec.E4M3, math.nan), dtype=torch.float64)
    out.fill_(-math.inf)
    for t, slot in enumerate(slots.tolist()):
        query = values[queries[t].long() & 127] * torch.where(queries[t] > 127, -1.0, 1.0)
        for column, index in _columns(blocks, t, out.shape[1], _seen(slot, lengths[t])):
            key = read(store, _physical(table[slot], index, store.layout.entries)).double()
            out[t, column] = (weights[t].double() * (query @ key).clamp(min=0)).sum()


def select_blocks(scores: Tensor, lengths: Tensor, block_entries: int, out: Tensor) -> None:
    """See ``contract.Backend.select_blocks``."""
    out.fill_(-1)
    for t, length in enumerate(lengths.tolist()):
        best = [
            float(scores[t, first : min(first + block_entries, length)].max())
            for first in range(0, length, block_entries)
        ]
        if best:
            best[-1] = math.inf
        chosen = _largest(best, out.shape[1])
        out[t, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)


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
    out.fill_(-1)
    entries.fill_(-1)
    for t, slot in enumerate(slots.tolist()):
        columns = list(_columns(blocks, t, scores.shape[1], _seen(slot, lengths[t])))
        chosen = _largest([float(scores[t, column]) for column, _ in columns], out.shape[1])
        for k, place in enumerate(chosen):
            _, index = columns[place]
            out[t, k] = index
            entries[t, k] = _physical(table[slot], index, page_entries)


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
    out.zero_()
    lse.fill_(math.inf)
    for t, slot in enumerate(slots.tolist()):
        seen = [*_window(ring, slot, int(tokens[t]), window), *_compressed(entries, slot, t)]
        if slot < 0 or not seen:
            continue
        values = torch.stack(seen)
        logits = scale * (queries[t].double() @ values.T)
        lse[t] = torch.logsumexp(logits, dim=1)
        denominator = torch.logaddexp(torch.logsumexp(logits, dim=1), sinks.double())
        out[t] = (logits - denominator[:, None]).exp() @ values


def _window(ring: PageStore, slot: int, count: int, window: int) -> Iterator[Tensor]:
    """The last entries of a ring, float64[D] each."""
    size = ring.layout.entries
    for position in range(max(0, count - window), count if slot >= 0 else 0):
        yield read(ring, slot * size + position % size).double()


def _compressed(entries: Entries | None, slot: int, t: int) -> Iterator[Tensor]:
    """The compressed entries that a token attends to, float64[D] each."""
    if entries is None:
        return
    length = _seen(slot, entries.lengths[t])
    chosen = range(length) if entries.indices is None else entries.indices[t].tolist()
    for index in chosen:
        if 0 <= index < length:
            row = entries.table[slot]
            physical = _physical(row, index, entries.store.layout.entries)
            yield read(entries.store, physical).double()


def _seen(slot: int, length: Tensor) -> int:
    return int(length) if slot >= 0 else 0


def _columns(blocks: Tensor | None, t: int, width: int, length: int) -> Iterator[tuple[int, int]]:
    """Columns of a token's scores that are a key it sees, and which key."""
    size = width // blocks.shape[1] if blocks is not None and blocks.shape[1] else width
    for column in range(width):
        block = 0 if blocks is None else int(blocks[t, column // size])
        index = block * size + column % size
        if block >= 0 and index < length:
            yield column, index


def _largest(scores: list[float], count: int) -> list[int]:
    """Places of the largest scores, of equals the first, in ascending order."""
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return sorted(best[:count])


def _physical(row: Tensor, index: int, page_entries: int) -> int:
    """Physical entry of a logical one by a slot's row of the table."""
    return int(row[index // page_entries]) * page_entries + index % page_entries
