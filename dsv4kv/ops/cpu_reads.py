"""The reads of a decode step in torch eager: pieces of the cache that stay in cache, multiplied.

Keys and entries are decoded a piece at a time and go into a matrix product of all heads at once;
nothing of the size of the cache is made.
"""

import math
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import codec
from dsv4kv.ops.contract import Entries
from dsv4kv.ops.cpu_decode import Decoder
from dsv4kv.ops.storage import PageStore

_PIECE = 1024  # entries: 2 MB in float32, or 0.5 MB of keys
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
    decoder = Decoder(store, max(_PIECE, store.layout.entries), apart=True)
    values = _ordered(queries.view(torch.float8_e4m3fn).float(), decoder)
    seen = lengths.where(slots >= 0, 0).tolist()
    out.fill_(-math.inf)
    for run in _runs(slots, one_by_one=blocks is not None):
        row, most = table[slots[run.start]].long(), max(seen[run])
        if blocks is None:
            place, pieces = torch.arange(most, device=out.device), _all_entries(decoder, row, most)
        else:
            place, chosen = _columns(blocks, run.start, out, most)
            pieces = _chosen_entries(decoder, row, chosen)
        for first, keys in pieces:
            scores = _score(values[run], weights[run], keys, decoder.factors)
            out[run, place[first : first + len(keys)]] = scores
    if blocks is None:
        for t, length in enumerate(seen):
            out[t, length:] = -math.inf


def _runs(slots: Tensor, *, one_by_one: bool) -> Iterator[slice]:
    """The tokens of each request, or each token."""
    numbers, first = slots.tolist(), 0
    for t in range(1, len(numbers) + 1):
        if t == len(numbers) or one_by_one or numbers[t] != numbers[first]:
            yield slice(first, t)
            first = t


def _ordered(queries: Tensor, decoder: Decoder) -> Tensor:
    """Queries [..., D] with their channels in the order of what is decoded."""
    return queries if decoder.order is None else queries[..., decoder.order]


def _all_entries(decoder: Decoder, row: Tensor, length: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces of entries 0 … length − 1 of a slot's row int64[W]: (number of the first, them)."""
    page_entries = decoder.page_entries
    pages = max(1, _PIECE // page_entries)
    for first in range(0, length, pages * page_entries):
        number = first // page_entries
        count = min(pages, -(-(length - first) // page_entries))
        yield first, decoder.pages(row[number : number + count])[: length - first]


def _chosen_entries(decoder: Decoder, row: Tensor, chosen: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Pieces of logical entries int64[n]: (place of the first, them)."""
    for first in range(0, len(chosen), _PIECE):
        some = chosen[first : first + _PIECE]
        yield first, decoder.entries(_physical(row, some, decoder.page_entries))


def _columns(blocks: Tensor | None, t: int, scores: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Columns of a token's scores that are keys it sees, and which keys: int64[n] each."""
    if blocks is None:
        every = torch.arange(length, device=scores.device)
        return every, every
    within = torch.arange(scores.shape[1] // max(blocks.shape[1], 1), device=scores.device)
    keys = (blocks[t].long()[:, None] * len(within) + within).flatten()
    columns = ((keys >= 0) & (keys < length)).nonzero().squeeze(1)
    return columns, keys[columns]


def _score(queries: Tensor, weights: Tensor, keys: Tensor, factors: Tensor | None) -> Tensor:
    """Scores float32[t, n] of queries [t, H, D] and keys [n, D] times factors [n]."""
    tokens, heads, dims = queries.shape
    products = (queries.reshape(-1, dims) @ keys.T).relu_().view(tokens, heads, -1)
    scores = (weights[:, None] @ products).squeeze(1)
    return scores if factors is None else scores.mul_(factors[: len(keys)])


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
    near, size = Decoder(ring, window), ring.layout.entries
    far = _Compressed(entries, slots) if entries else None
    out.zero_()
    lse.fill_(math.inf)
    for t, (slot, count) in enumerate(zip(slots.tolist(), tokens.tolist(), strict=True)):
        if slot < 0:
            continue
        positions = torch.arange(max(0, count - window), count, device=slots.device)
        pieces = [(near, near.entries(slot * size + positions % size))] if count else []
        query = queries[t].float()
        parts = [
            _attend_piece(query, decoder, values, scale)
            for decoder, values in chain(pieces, far.of(t) if far else ())
        ]
        if parts:
            _merge(parts, sinks, out[t], lse[t])


class _Compressed:
    """The compressed entries of tokens, decoded a piece at a time."""

    def __init__(self, entries: Entries, slots: Tensor) -> None:
        """slots: int64[T]."""
        size = entries.store.layout.entries
        self._decoder, self._entries = Decoder(entries.store, max(_PIECE, size)), entries
        self._rows = entries.table[slots].long()
        if (indices := entries.indices) is not None:
            self._valid = (indices >= 0) & (indices < entries.lengths[:, None])
            logical = indices.long().masked_fill_(~self._valid, 0)
            pages = self._rows.gather(1, logical // size)
            self._physical = pages * size + logical % size

    def of(self, t: int) -> Iterator[tuple[Decoder, Tensor]]:
        """Decoder and pieces float32[n, D] of what a token attends to."""
        decoder = self._decoder
        if self._entries.indices is None:
            length = int(self._entries.lengths[t])
            for _, values in _all_entries(decoder, self._rows[t], length):
                yield decoder, values
            return
        physical = self._physical[t][self._valid[t]]
        for first in range(0, len(physical), _PIECE):
            yield decoder, decoder.entries(physical[first : first + _PIECE])


_Part = tuple[Tensor, Tensor]
"""Outputs float32[H, D] and lse float32[H] of attention to some entries, without sinks."""


def _attend_piece(query: Tensor, decoder: Decoder, values: Tensor, scale: float) -> _Part:
    """Attention of a token's heads float32[H, D] to entries [n, D], in the decoder's order."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    rows, keys = _ordered(query, decoder)[None, None], values[None, None]
    mixed, lse = attention(rows, keys, keys, scale=scale)
    if decoder.order is None:
        return mixed[0, 0], lse[0, 0]
    return torch.empty_like(query).index_copy_(1, decoder.order, mixed[0, 0]), lse[0, 0]


def _merge(parts: list[_Part], sinks: Tensor, out: Tensor, lse: Tensor) -> None:
    """Outputs of all parts together, with what sinks take; the sum of their exponentials."""
    sums = torch.stack([sum_ for _, sum_ in parts])
    torch.logsumexp(sums, dim=0, out=lse)
    shares = (sums - lse).exp_().mul_((lse - sinks).sigmoid_())
    total = parts[0][0] * shares[0, :, None]
    for (mixed, _), share in zip(parts[1:], shares[1:], strict=True):
        total.addcmul_(mixed, share[:, None])
    out.copy_(total)


def _physical(row: Tensor, indices: Tensor, page_entries: int) -> Tensor:
    """Physical entries of logical ones, int64[n], by a slot's row of the table."""
    return row[indices // page_entries].long() * page_entries + indices % page_entries
