"""The reads of a decode step in torch eager: entries are decoded in pieces, then multiplied.

A token's entries are decoded for it alone, in float32; only the keys of a request are shared by
its tokens.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import codec
from dsv4kv.ops.storage import Entries, PageStore

_KEYS = 4096  # decoded at once: 2 MB in float32
_QUERY = FORMATS["indexer"]["fp8"]


def indexer_query(
    queries: Tensor,
    weights: Tensor,
    turns: Tensor,
    hadamard: bool,
    out: Tensor,
    out_weights: Tensor,
) -> None:
    tokens, heads, dims = queries.shape
    values = queries.float()
    cos, sin = turns[:, None].chunk(2, dim=-1)
    tail = values[..., dims - turns.shape[-1] :]
    real, imaginary = tail[..., 0::2].clone(), tail[..., 1::2].clone()
    tail[..., 0::2] = real * cos - imaginary * sin
    tail[..., 1::2] = real * sin + imaginary * cos
    turned = values.bfloat16().view(-1, dims)
    data, scales = codec.encode(_QUERY, codec.hadamard(turned) if hadamard else turned)
    assert scales is not None  # the format has one for each
    out.copy_(data.view(out.shape))
    factors = scales.view(torch.float32).view(tokens, heads)
    torch.mul(weights * factors, (heads * dims) ** -0.5, out=out_weights)


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
    values = queries.view(torch.float8_e4m3fn).float()
    seen = lengths.where(slots >= 0, 0).tolist()
    out.fill_(-math.inf)
    for run in _runs(slots, one_by_one=blocks is not None):
        row, keys = table[slots[run.start]], _keys(blocks, run.start, out, max(seen[run]))
        for first in range(0, len(keys), _KEYS):
            decoded = _decode(store, row, keys[first : first + _KEYS])
            products = (values[run] @ decoded.T).relu_()
            scores = torch.bmm(weights[run, None], products)[:, 0]
            out[run, first : first + len(decoded)] = scores
    if blocks is None:
        for t, length in enumerate(seen):
            out[t, length:] = -math.inf


def _runs(slots: Tensor, *, one_by_one: bool) -> Iterator[slice]:
    """Neighbouring tokens of one slot."""
    numbers, first = slots.tolist(), 0
    for t in range(1, len(numbers) + 1):
        if t == len(numbers) or one_by_one or numbers[t] != numbers[first]:
            yield slice(first, t)
            first = t


def _keys(blocks: Tensor | None, t: int, scores: Tensor, length: int) -> Tensor:
    """Which keys a token's first scores are of, int64[n]; the others are of none that it sees."""
    if blocks is None:
        return torch.arange(length, device=scores.device)
    within = torch.arange(scores.shape[1] // max(blocks.shape[1], 1), device=scores.device)
    keys = (blocks[t].long()[:, None] * len(within) + within).flatten()
    return keys[(keys >= 0) & (keys < length)]  # the first ones, as blocks ascend


def _decode(store: PageStore, row: Tensor, logical: Tensor) -> Tensor:
    """Logical entries int64[n] of a slot with this row of the table: float32[n, D]."""
    values = torch.empty(len(logical), store.layout.format.dims, dtype=torch.bfloat16)
    stored = store.read(_physical(row, logical, store.layout.entries))
    codec.decode(store.layout.format, *stored, values)
    return values.float()


def select_blocks(scores: Tensor, lengths: Tensor, block_entries: int, out: Tensor) -> None:
    out.fill_(-1)
    for t, length in enumerate(lengths.tolist()):
        if length:
            row = torch.nn.functional.pad(
                scores[t, :length], (0, -length % block_entries), value=-math.inf
            )
            best = row.view(-1, block_entries).amax(dim=1)
            best[-1] = math.inf
            chosen = _largest(best, out.shape[1])
            out[t, : len(chosen)] = chosen


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
    out.fill_(-1)
    entries.fill_(-1)
    for t, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        keys = _keys(blocks, t, scores, length if slot >= 0 else 0)
        chosen = keys[_largest(scores[t, : len(keys)], out.shape[1])]
        out[t, : len(chosen)] = chosen
        entries[t, : len(chosen)] = _physical(table[slot], chosen, page_entries)


def _largest(scores: Tensor, count: int) -> Tensor:
    """Places of the largest scores [n], of equals the first, in ascending order: int64."""
    if len(scores) <= count:
        return torch.arange(len(scores), device=scores.device)
    least = scores.topk(count).values[-1]
    chosen = scores > least
    equal = (scores == least).nonzero().squeeze(1)
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen.nonzero().squeeze(1)


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
    out.zero_()
    lse.fill_(math.inf)
    size = ring.layout.entries
    for t, (slot, count) in enumerate(zip(slots.tolist(), tokens.tolist(), strict=True)):
        if slot < 0:
            continue
        rows = torch.arange(max(0, count - window), count) % size
        parts = [_decode(ring, torch.tensor([slot]), rows)]  # a slot's only block is its page
        if entries:
            parts.append(_decode(entries.store, entries.table[slot], _attended(entries, t)))
        values = torch.cat(parts)
        if len(values):
            logits = (queries[t].float() @ values.T).mul_(scale)
            lse[t] = logits.logsumexp(dim=1)
            total = torch.logaddexp(lse[t], sinks)
            out[t] = (logits - total[:, None]).exp_() @ values


def _attended(entries: Entries, t: int) -> Tensor:
    """Logical entries that a token attends to, int64[n]."""
    length = int(entries.lengths[t])
    if entries.indices is None:
        return torch.arange(length)
    indices = entries.indices[t].long()
    return indices[(indices >= 0) & (indices < length)]


def _physical(row: Tensor, indices: Tensor, page_entries: int) -> Tensor:
    """Physical entries of logical ones, int64[n], by a slot's row of the table."""
    return row[indices // page_entries].long() * page_entries + indices % page_entries
