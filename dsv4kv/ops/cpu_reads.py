"""The reads of a decode step in torch eager: pieces of the cache that stay in cache, multiplied.

Keys and entries are decoded a piece at a time and go into a matrix product of all heads at once;
nothing of the size of the cache is made. Queries, keys and entries are numbers of bf16, so their
products go to a processor's bf16 units where it has them, which add up in float32.

Decoding takes few passes, none over numbers that are subnormal in float32, which processors are
slow with. E4M3 becomes half precision by moving its bits: sign-extended to 16 bits, shifted left
by 7, and sign, exponent and mantissa kept. That is 2^-8 of it, which the scale makes up for. E2M1:
two bytes at a time are looked up, and are four numbers of bf16.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops import codec
from dsv4kv.ops.storage import Entries, PageStore

_KEYS, _PIECE = 4096, 2304  # 2 MB in float32 of keys; of entries what two tokens choose
_QUERY = FORMATS["indexer"]["fp8"]


_TOO_SMALL = 2.0**8
_SHIFT = 1 << 7  # a product takes a third less time than a shift
_E4M3_BITS = -0x4080  # 0xBF80 of a half-precision number


class Decoder:
    """Decodes entries of a store into a buffer, which the next piece overwrites.

    Attributes:
        page_entries: Entries of a page.
        most: Entries of the largest piece.
        factors: What each entry of the last piece is still to be multiplied by, float32[n]; None
            for nothing.
    """

    def __init__(self, store: PageStore, entries: int, *, apart: bool = False) -> None:
        """``entries`` of a piece, or those of a page; ``apart``: leave a scale of entries out."""
        form, device = store.layout.format, store.pages.device
        self.page_entries = store.layout.entries
        self.most = max(entries, self.page_entries)
        self.factors: Tensor | None = None
        self._apart = apart and form.groups == 1 and not form.tail_dims
        self._store, self._form = store, form
        self._values = torch.empty(self.most, form.dims, device=device)
        self._bits = torch.empty(self.most, form.value_dims, dtype=torch.int16, device=device)
        self._scales = _scale_table(form).to(device)
        self._quads = _quads(str(device)) if form.value == "e2m1" else None

    def entries(self, physical: Tensor, out: Tensor | None = None) -> Tensor:
        """Physical entries int64[...] as float32[..., D]; into ``out``, if it is given."""
        data, scales = self._store.read(physical.reshape(-1))
        values = self._buffer(physical.shape) if out is None else out
        self._decode(data.view(*physical.shape, data.shape[-1]), scales, values)
        return values

    def pages(self, pages: Tensor) -> Tensor:
        """All entries of pages int64[n], one page after another: float32[n · P, D]."""
        data, scales = self._store.read_pages(pages)
        values = self._buffer(data.shape[:-1])
        self._decode(data, scales, values)
        return values.flatten(0, 1)

    def _buffer(self, rows: torch.Size) -> Tensor:
        return self._values[: rows.numel()].view(*rows, self._form.dims)

    def _decode(self, data: Tensor, scales: Tensor | None, values: Tensor) -> None:
        """Rows uint8[..., row bytes], and of scales uint8[·, scale bytes], to float32[..., D]."""
        form, rows = self._form, data.shape[:-1]
        if form.scale == "amax_fp32":  # its values are rounded to bf16
            assert scales is not None
            decoded = torch.empty(rows.numel(), form.dims, dtype=torch.bfloat16)
            codec.decode(form, _rows(data), _rows(scales), decoded)
            values.copy_(decoded.view(values.shape))
        elif form.value == "bf16":
            values.copy_(data.view(torch.bfloat16))
        else:
            bits = self._bits[: rows.numel()].view(*rows, form.value_dims)
            scaled = values[..., : form.value_dims]
            self._scale(scaled.copy_(self._numbers(data[..., : form.value_bytes], bits)), scales)
            if form.tail_dims:
                tail = data[..., form.value_bytes :].view(torch.bfloat16)
                values[..., form.value_dims :] = tail

    def _numbers(self, codes: Tensor, bits: Tensor) -> Tensor:
        """Codes uint8[..., bytes] as numbers of 16 bits, made in int16[..., values]."""
        if self._quads is not None:
            places = codes.view(torch.uint16).int().view(-1)
            torch.index_select(self._quads, 0, places, out=bits.view(torch.int64).view(-1))
            return bits.view(torch.bfloat16)
        bits.copy_(codes.view(torch.int8)).mul_(_SHIFT).bitwise_and_(_E4M3_BITS)
        return bits.view(torch.float16)

    def _scale(self, values: Tensor, scales: Tensor | None) -> None:
        """Multiply values float32[..., value dims] by their groups' scales uint8[..., bytes]."""
        form = self._form
        if scales is None:
            values.mul_(_TOO_SMALL)  # without scales there is only E4M3
            return
        used = scales[..., : form.scale_bytes - form.scale_padding]
        if form.scale == "fp32":
            factors = used.contiguous().view(torch.float32) * _TOO_SMALL
        else:
            factors = self._scales.index_select(0, used.int().view(-1))
        if self._apart:
            self.factors = factors.view(-1)
        else:
            by_group = (*values.shape[:-1], form.groups)
            values.view(*by_group, form.group).mul_(factors.view(*by_group, 1))


def _rows(data: Tensor) -> Tensor:
    return data.reshape(data.shape[:-1].numel(), data.shape[-1])


@functools.cache
def _quads(device: str) -> Tensor:
    """int64[65536]: all four bf16 values of every two bytes of E2M1."""
    pairs = codec.e2m1_pairs(device)
    both = torch.stack([pairs.repeat(256), pairs.repeat_interleave(256)], dim=1)
    return both.view(torch.int64).view(-1)


def _scale_table(form: EntryFormat) -> Tensor:
    """What values are multiplied by, for each byte that a scale may be: float32[256]."""
    codes = torch.arange(256, dtype=torch.uint8)
    if form.scale == "e4m3":
        scales = codes.view(torch.float8_e4m3fn).float()
    else:
        scales = torch.exp2(codes.double() - 127).float()
    return scales * _TOO_SMALL if form.value == "e4m3" else scales


def indexer_query(
    queries: Tensor,
    weights: Tensor,
    turns: Tensor,
    hadamard: bool,
    out: Tensor,
    out_weights: Tensor,
) -> None:
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
    decoder = Decoder(store, _KEYS, apart=True)
    values = queries.view(torch.float8_e4m3fn).float()
    seen = lengths.where(slots >= 0, 0).tolist()
    out.fill_(-math.inf)
    for run in _runs(slots, one_by_one=blocks is not None):
        row, most = table[slots[run.start]].long(), max(seen[run])
        if blocks is None:
            pieces = _all_entries(decoder, row, most)
        else:
            pieces = _chosen_entries(decoder, row, _keys(blocks, run.start, out, most))
        for first, keys in pieces:
            scores = _score(values[run], weights[run], keys, decoder.factors)
            out[run, first : first + len(keys)] = scores
    if blocks is None:
        for t, length in enumerate(seen):
            out[t, length:] = -math.inf


def _runs(slots: Tensor, *, one_by_one: bool) -> Iterator[slice]:
    numbers, first = slots.tolist(), 0
    for t in range(1, len(numbers) + 1):
        if t == len(numbers) or one_by_one or numbers[t] != numbers[first]:
            yield slice(first, t)
            first = t


def _all_entries(decoder: Decoder, row: Tensor, length: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces of entries 0 … length − 1 of a slot's row int64[W]: (number of the first, them)."""
    page_entries = decoder.page_entries
    pages = decoder.most // page_entries
    for first in range(0, length, pages * page_entries):
        number = first // page_entries
        count = min(pages, -(-(length - first) // page_entries))
        yield first, decoder.pages(row[number : number + count])[: length - first]


def _chosen_entries(decoder: Decoder, row: Tensor, chosen: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Pieces of logical entries int64[n]: (place of the first, them)."""
    for first in range(0, len(chosen), decoder.most):
        some = chosen[first : first + decoder.most]
        yield first, decoder.entries(_physical(row, some, decoder.page_entries))


def _keys(blocks: Tensor | None, t: int, scores: Tensor, length: int) -> Tensor:
    """Which keys a token's first scores are of, int64[n]; the others are of none that it sees."""
    if blocks is None:
        return torch.arange(length, device=scores.device)
    within = torch.arange(scores.shape[1] // max(blocks.shape[1], 1), device=scores.device)
    keys = (blocks[t].long()[:, None] * len(within) + within).flatten()
    return keys[(keys >= 0) & (keys < length)]  # the first ones, as blocks ascend


def _score(queries: Tensor, weights: Tensor, keys: Tensor, factors: Tensor | None) -> Tensor:
    """Scores float32[t, n] of queries [t, H, D] and keys [n, D] times factors [n]."""
    tokens, heads, dims = queries.shape
    with _bf16_units():
        products = torch.mm(queries.view(-1, dims), keys.T)
    products = products.relu_().view(tokens, heads, -1)
    scores = torch.bmm(weights[:, None], products)[:, 0]
    return scores if factors is None else scores.mul_(factors[: len(keys)])


@contextmanager
def _bf16_units() -> Iterator[None]:
    """Products of float32 may round their factors to bf16: for factors that already are."""
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined] # made at run time
    before, settings.fp32_precision = settings.fp32_precision, "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


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
    most = max(_PIECE, window + _width(entries))
    near = Decoder(ring, most)
    far = Decoder(entries.store, most) if entries else None
    values = torch.empty(most, queries.shape[-1], device=queries.device)
    for some in _token_groups(slots, window, entries):
        query = queries[some].float(), scale
        rows = [_window_rows(near, slots[some], tokens[some], window)]
        if entries and far and entries.indices is not None:
            rows.append(_chosen_rows(far, entries, slots[some], some))
        parts = [_attend_rows(rows, query, values)]
        if entries and far and entries.indices is None:
            parts += _attend_all(far, entries, slots[some], some, query)
        _merge(parts, sinks, out[some], lse[some])


def _width(entries: Entries | None) -> int:
    """Entries that each token chooses; 0 where it chooses none."""
    return entries.indices.shape[1] if entries and entries.indices is not None else 0


def _token_groups(slots: Tensor, window: int, entries: Entries | None) -> Iterator[slice]:
    """Tokens that are worked on together: a request's, or any, as many as make a piece."""
    every = entries is not None and entries.indices is None
    runs = _runs(slots, one_by_one=False) if every else [slice(0, len(slots))]
    count = max(1, _PIECE // max(window + _width(entries), 1))
    for run in runs:
        for first in range(run.start, run.stop, count):
            yield slice(first, min(first + count, run.stop))


_Query = tuple[Tensor, float]
"""Rows float32[T, H, D] of bf16 numbers, and the scale that their products take."""

_Rows = tuple[Decoder, Tensor, Tensor]
"""Entries of each token: what decodes them, physical ones int64[T, n], which count bool[T, n]."""

_Part = tuple[Tensor, Tensor]
"""Outputs float32[T, H, D] and lse float32[T, H] of attention to some entries, without sinks."""


def _window_rows(decoder: Decoder, slots: Tensor, tokens: Tensor, window: int) -> _Rows:
    size = decoder.page_entries
    positions = tokens[:, None] - window + torch.arange(window, device=slots.device)
    valid = (positions >= 0) & (slots[:, None] >= 0)
    return decoder, slots[:, None] * size + positions % size, valid


def _chosen_rows(decoder: Decoder, entries: Entries, slots: Tensor, some: slice) -> _Rows:
    assert entries.indices is not None
    indices, size = entries.indices[some].long(), decoder.page_entries
    seen = entries.lengths[some].where(slots >= 0, 0)
    valid = (indices >= 0) & (indices < seen[:, None])
    indices = indices.where(valid, 0)
    pages = entries.table[slots].gather(1, indices // size)
    return decoder, pages.long() * size + indices % size, valid


def _attend_rows(rows: list[_Rows], query: _Query, buffer: Tensor) -> _Part:
    """Attention of each token to its own entries, those of all ``rows``, decoded into a buffer."""
    valid = torch.cat([valid for *_, valid in rows], dim=1)
    values, first = buffer[: valid.numel()].view(*valid.shape, -1), 0
    for decoder, physical, known in rows:
        size = physical.shape[1]
        decoder.entries(physical.where(known, 0), values[:, first : first + size])
        first += size
    if valid.all():
        return _attend(query, values, None)
    values.masked_fill_(~valid[:, :, None], 0.0)  # whatever is there, a NaN included
    return _attend(query, values, valid[:, None])


def _attend_all(
    decoder: Decoder, entries: Entries, slots: Tensor, some: slice, query: _Query
) -> Iterator[_Part]:
    """Attention of a request's tokens to all entries that each sees, a piece at a time."""
    lengths = entries.lengths[some].where(slots >= 0, 0)
    fewest, most = int(lengths.min()), int(lengths.max())
    row, (asked, scale) = entries.table[slots[0]].long(), query
    tokens, heads, dims = asked.shape
    for first, values in _all_entries(decoder, row, most):
        valid = None
        if first + len(values) > fewest:
            numbers = torch.arange(first, first + len(values), device=slots.device)
            valid = (numbers < lengths[:, None]).repeat_interleave(heads, dim=0)[None]
        mixed, lse = _attend((asked.view(1, -1, dims), scale), values[None], valid)
        yield mixed.view(asked.shape), lse.view(tokens, heads)


def _attend(query: _Query, values: Tensor, valid: Tensor | None) -> _Part:
    """Attention of rows float32[B, R, D] to entries [B, n, D] where valid bool[B, ·, n]."""
    rows, scale = query
    with _bf16_units():
        logits = torch.bmm(rows, values.transpose(1, 2)).mul_(scale)
    if valid is not None:
        logits.masked_fill_(~valid, -math.inf)
    top = logits.amax(dim=2, keepdim=True).clamp_(min=_LOWEST)
    weights = logits.sub_(top).exp_()
    total = weights.sum(dim=2, keepdim=True)
    lse = total.log().add_(top)[..., 0]
    return torch.bmm(weights, values).div_(total.clamp_(min=_TINY)), lse


_LOWEST = -3e38  # of rows that see nothing: −∞ less −∞ is none
_TINY = 2.0**-126


def _merge(parts: list[_Part], sinks: Tensor, out: Tensor, lse: Tensor) -> None:
    """Outputs of all parts together, with what sinks take; the sum of their exponentials."""
    sums = torch.stack([part_lse for _, part_lse in parts])
    if len(parts) == 1:
        lse.copy_(sums[0])
    else:
        torch.logsumexp(sums, dim=0, out=lse)
    shares = (sums - lse.clamp(min=_LOWEST)).exp_().mul_((lse - sinks).sigmoid_())
    shares.nan_to_num_(nan=0.0)  # nothing visible, and a sink of −∞
    total = parts[0][0].mul_(shares[0, ..., None])
    for (mixed, _), share in zip(parts[1:], shares[1:], strict=True):
        total.addcmul_(mixed, share[..., None])
    out.copy_(total)
    lse.masked_fill_(lse == -math.inf, math.inf)


def _physical(row: Tensor, indices: Tensor, page_entries: int) -> Tensor:
    """Physical entries of logical ones, int64[n], by a slot's row of the table."""
    return row[indices // page_entries].long() * page_entries + indices % page_entries
