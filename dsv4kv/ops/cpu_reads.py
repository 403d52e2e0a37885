"""The reads of a decode step in torch eager: pieces of the cache that stay in cache, multiplied.

Keys and entries are decoded a piece at a time and go into a matrix product of all heads at once;
nothing of the size of the cache is made.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import codec
from dsv4kv.ops.contract import Entries
from dsv4kv.ops.storage import PageStore

_PIECE = 512  # entries: 1 MB in float32, and 0.25 MB of keys
_QUERY = FORMATS["indexer"]["fp8"]


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
    turned = _turn(queries.float(), turns).bfloat16().view(-1, dims)
    data, scales = codec.encode(_QUERY, codec.hadamard(turned) if hadamard else turned)
    assert scales is not None  # the format has one for each
    out.copy_(data.view(out.shape))
    factors = scales.view(torch.float32).view(tokens, heads)
    torch.mul(weights * factors, (heads * dims) ** -0.5, out=out_weights)


def _turn(values: Tensor, turns: Tensor) -> Tensor:
    """Rotate the last pairs of values, float32[T, H, D], by cosines and sines, float32[T, R]."""
    cos, sin = turns[:, None].chunk(2, dim=-1)
    tail = values[..., values.shape[-1] - turns.shape[-1] :]
    real, imaginary = tail[..., 0::2].clone(), tail[..., 1::2].clone()
    tail[..., 0::2] = real * cos - imaginary * sin
    tail[..., 1::2] = real * sin + imaginary * cos
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
    values = queries.view(torch.float8_e4m3fn).float()
    seen = lengths.where(slots >= 0, 0)
    out.fill_(-math.inf)
    for run in _runs(slots, one_by_one=blocks is not None):
        row, most = table[slots[run.start]], int(seen[run].max())
        columns, keys = _columns(blocks, run.start, out, most)
        for where, indices in zip(_pieces(columns), _pieces(keys), strict=True):
            decoded = _decoded(store, _physical(row, indices, store.layout.entries))
            scores = _score(values[run], weights[run], decoded)
            out[run, where] = scores.masked_fill_(indices >= seen[run, None], -math.inf)


def _runs(slots: Tensor, *, one_by_one: bool) -> Iterator[slice]:
    """The tokens of each request, or each token."""
    numbers, first = slots.tolist(), 0
    for t in range(1, len(numbers) + 1):
        if t == len(numbers) or one_by_one or numbers[t] != numbers[first]:
            yield slice(first, t)
            first = t


def _columns(blocks: Tensor | None, t: int, scores: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Columns of a token's scores that are keys it sees, and which keys: int64[n] each."""
    if blocks is None:
        every = torch.arange(length, device=scores.device)
        return every, every
    within = torch.arange(scores.shape[1] // max(blocks.shape[1], 1), device=scores.device)
    keys = (blocks[t].long()[:, None] * len(within) + within).flatten()
    columns = ((keys >= 0) & (keys < length)).nonzero().squeeze(1)
    return columns, keys[columns]


def _pieces(numbers: Tensor) -> list[Tensor]:
    return [numbers[i : i + _PIECE] for i in range(0, len(numbers), _PIECE)]


def _score(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Scores float32[t, n] of queries [t, H, D] and keys [n, D]; weights [t, H]."""
    tokens, heads, dims = queries.shape
    products = (queries.reshape(-1, dims) @ keys.T).relu_().view(tokens, heads, -1)
    return (weights[:, None] @ products).squeeze(1)


def select_blocks(scores: Tensor, lengths: Tensor, block_entries: int, out: Tensor) -> None:
    """See ``contract.Backend.select_blocks``."""
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
    """See ``contract.Backend.select_topk``."""
    out.fill_(-1)
    entries.fill_(-1)
    for t, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        columns, indices = _columns(blocks, t, scores, length if slot >= 0 else 0)
        chosen = indices[_largest(scores[t, columns], out.shape[1])]
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
    """See ``contract.Backend.attend``."""
    out.zero_()
    lse.fill_(math.inf)
    for t, (slot, count) in enumerate(zip(slots.tolist(), tokens.tolist(), strict=True)):
        if slot < 0:
            continue
        size = ring.layout.entries
        positions = torch.arange(max(0, count - window), count, device=slots.device)
        pieces = [(ring, slot * size + positions % size)]
        if entries is not None:
            chosen = _physical(
                entries.table[slot], _attended(entries, t), entries.store.layout.entries
            )
            pieces += [(entries.store, piece) for piece in _pieces(chosen)]
        _attend_token(pieces, queries[t].float() * scale, sinks, out[t], lse[t])


def _attended(entries: Entries, t: int) -> Tensor:
    """Logical entries that a token attends to, int64[n]."""
    length = int(entries.lengths[t])
    if entries.indices is None:
        return torch.arange(length, device=entries.lengths.device)
    indices = entries.indices[t].long()
    return indices[(indices >= 0) & (indices < length)]


def _attend_token(
    pieces: list[tuple[PageStore, Tensor]], query: Tensor, sinks: Tensor, out: Tensor, lse: Tensor
) -> None:
    """Softmax over pieces of physical entries, one after another: query float32[H, D], scaled."""
    top = torch.full_like(sinks, -math.inf)
    total, mixed = torch.zeros_like(sinks), torch.zeros_like(query)
    for store, physical in pieces:
        if len(physical):
            values = _decoded(store, physical)
            logits = query @ values.T
            higher = torch.maximum(top, logits.amax(dim=1))
            weights, kept = (logits - higher[:, None]).exp_(), (top - higher).exp_()
            total = total * kept + weights.sum(dim=1)
            mixed = torch.addmm(mixed.mul_(kept[:, None]), weights, values)
            top = higher
    if bool(total[0] > 0):
        torch.add(top, total.log(), out=lse)
        out.copy_(mixed / (total + (sinks - top).exp())[:, None])


def _physical(row: Tensor, indices: Tensor, page_entries: int) -> Tensor:
    """Physical entries of logical ones, int64[n], by a slot's row of the table."""
    return row[indices // page_entries].long() * page_entries + indices % page_entries


def _decoded(store: PageStore, physical: Tensor) -> Tensor:
    """Entries as float32[n, D]."""
    shape = len(physical), store.layout.format.dims
    decoded = torch.empty(shape, dtype=torch.bfloat16, device=physical.device)
    codec.decode(store.layout.format, *store.read(physical), decoded)
    return decoded.float()
