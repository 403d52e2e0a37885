"""The backend in torch eager where there is no GPU.

Right, and as fast as eager operations go; not a performance claim. What is not here is done as the
reference does it. Of a decode step's reads, entries are decoded in pieces, then multiplied: each
token's for it alone, in float32.

Entries become bytes and come back whole tensors at a time, with torch operations of any device:
equal to ``reference`` bit for bit. The tricks:

* E4M3 to bf16: sign-extend the byte to 16 bits, shift left by 4, keep sign, exponent and mantissa
  (mask 0x87F0), read as bf16: the value times 2^-120, subnormals included.
* Power-of-two scales: move the exponent field, never call ``log2`` or ``exp2``.
* E2M1 to bf16: one table look-up per byte gives both values.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops import reference
from dsv4kv.ops.reference import AMAX_FLOOR, E2M1, SMALLEST_NORMAL, fl32
from dsv4kv.ops.storage import Compressor, Entries, PageStore, Parts


def __getattr__(name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(reference, name)
    return function


_INVERSE_LARGEST = {"e4m3": fl32(1.0 / 448.0), "e2m1": fl32(1.0 / 6.0)}
_E2M1_EDGES = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True))
_LAST_EDGE = 5.0


def encode(entry: EntryFormat, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """Encode bf16 or float32[n, D] to uint8[n, ·]: values and tail, and scales if there are."""
    if entry.value == "bf16":
        return values.bfloat16().contiguous().view(torch.uint8), None
    n, step = values.shape[0], entry.group or entry.value_dims
    groups = values[:, : entry.value_dims].to(torch.float32, copy=True)
    groups = groups.view(n, entry.value_dims // step, step)
    inverse, scales = _scales(entry, groups)
    if inverse is not None:
        groups = groups.div_(inverse) if entry.scale in _DIVIDE_BY else groups.mul_(inverse)
    codes = _e4m3_codes(groups) if entry.value == "e4m3" else _e2m1_codes(groups)
    data = codes.reshape(n, entry.value_bytes)
    if entry.tail_dims:
        tail = values[:, entry.value_dims :].bfloat16().contiguous().view(torch.uint8)
        data = torch.cat([data, tail], dim=1)
    return data, scales


def decode(entry: EntryFormat, data: Tensor, scales: Tensor | None, out: Tensor) -> None:
    """Decode what ``encode`` gives into out bf16[n, D], which may be a strided view."""
    if entry.value == "bf16":
        out.copy_(data.view(torch.bfloat16))
        return
    n, dims = data.shape[0], entry.value_dims
    if entry.value == "e4m3":
        _decode_e4m3(entry, data[:, : entry.value_bytes], scales, out)
    else:
        pairs = e2m1_pairs(str(data.device)).index_select(0, data.reshape(-1).int())
        groups = pairs.view(torch.bfloat16).view(n, entry.groups, entry.group)
        assert scales is not None  # every e2m1 format has scales
        factor = _scale_values(entry, scales)
        torch.mul(groups, factor, out=out[:, :dims].view(n, entry.groups, entry.group))
    if entry.tail_dims:
        out[:, dims:] = data[:, entry.value_bytes :].view(torch.bfloat16)


def rotate(values: Tensor) -> Tensor:
    """Rotate bf16[n, d] by Hadamard(d) / sqrt(d) in float32; d is a power of two."""
    n, d = values.shape
    rotated: Tensor = values.float()
    half = 1
    while half < d:
        pairs = rotated.view(n, d // (2 * half), 2, half)
        rotated = torch.stack(
            [pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2
        )
        half *= 2
    return (rotated.view(n, d) / math.sqrt(d)).bfloat16()


def _scales(entry: EntryFormat, groups: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What to multiply (``_DIVIDE_BY``: divide) the groups by, and the stored scale rows."""
    if entry.scale == "none":
        return None, None
    if entry.scale == "amax_fp32":
        scale = groups.abs().amax(dim=-1).div_(448.0).clamp_min_(SMALLEST_NORMAL)
        return scale.unsqueeze(-1), scale.view(torch.uint8)
    amax = groups.abs().amax(dim=-1).clamp_min_(AMAX_FLOOR[entry.value])
    scaled = amax.mul_(_INVERSE_LARGEST[entry.value])
    if entry.scale == "e4m3":
        stored = scaled.clamp_max_(448.0).to(torch.float8_e4m3fn).view(torch.uint8).clamp_min_(1)
        return stored.view(torch.float8_e4m3fn).float().unsqueeze(-1), stored
    # Biased by 127, rounded up: any mantissa bit carries into the exponent field.
    exponent = (scaled.view(torch.int32) + 0x7FFFFF) >> 23
    inverse = ((254 - exponent) << 23).view(torch.float32).unsqueeze(-1)
    if entry.scale == "fp32":
        return inverse, (exponent << 23).view(torch.uint8)
    stored = exponent.to(torch.uint8)
    return inverse, torch.nn.functional.pad(stored, (0, entry.scale_padding))


_DIVIDE_BY = ("e4m3", "amax_fp32")


def _e4m3_codes(groups: Tensor) -> Tensor:
    return groups.clamp_(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def _e2m1_codes(groups: Tensor) -> Tensor:
    size = groups.abs()
    code = (size > _LAST_EDGE).to(torch.uint8)
    for edge, inclusive in _E2M1_EDGES:
        code += size >= edge if inclusive else size > edge
    code |= torch.signbit(groups).to(torch.uint8) << 3
    pairs = code.view(*code.shape[:-1], -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4


def _decode_e4m3(entry: EntryFormat, data: Tensor, scales: Tensor | None, out: Tensor) -> None:
    n, dims, groups = data.shape[0], entry.value_dims, max(entry.groups, 1)
    bits = data.view(torch.int8).to(torch.int16)  # sign-extended
    tiny = bits.bitwise_left_shift_(4).bitwise_and_(-0x7810).view(torch.bfloat16)  # 0x87F0
    target = out[:, :dims].view(n, groups, dims // groups)
    values = tiny.mul_(2.0**120).view(n, groups, dims // groups)
    if scales is None:
        target.copy_(values)
    elif entry.scale == "amax_fp32":
        factor = scales.contiguous().view(torch.float32).unsqueeze(-1)
        target.copy_(values.float().mul_(factor))
    else:
        torch.mul(values, _scale_values(entry, scales), out=target)


def _scale_values(entry: EntryFormat, scales: Tensor) -> Tensor:
    """Scales of bf16-representable value as bf16[n, groups, 1]."""
    used = scales[:, : entry.scale_bytes - entry.scale_padding]
    if entry.scale == "ue8m0":
        # 2^-127 (byte 0) is a bf16 subnormal: exponent field 0, mantissa 2^6.
        bits = used.to(torch.int16).bitwise_left_shift(7).masked_fill_(used == 0, 0x40)
        return bits.view(torch.bfloat16).unsqueeze(-1)
    dtype = torch.float32 if entry.scale == "fp32" else torch.float8_e4m3fn
    return used.contiguous().view(dtype).bfloat16().unsqueeze(-1)


@functools.cache
def e2m1_pairs(device: str) -> Tensor:
    """int32[256]: both bf16 values of every byte, low nibble first."""
    values = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.bfloat16)
    codes = torch.arange(256)
    both = torch.stack([values[codes & 15], values[codes >> 4]], dim=1).contiguous()
    return both.view(torch.int32).view(-1).to(device)


_CHUNK = 4096  # entries: 2.4 MB read and 4 MB written stay in L2 and L3


def window_insert(ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor) -> None:
    size = ring.layout.entries
    rows = torch.where(slots >= 0, slots * size + positions % size, -1)
    distinct, group = torch.unique(rows, return_inverse=True)
    if len(distinct) < len(rows):
        order = torch.argsort(positions, stable=True)
        ranks = torch.arange(len(rows), device=rows.device)
        last = torch.zeros_like(distinct).scatter_reduce_(0, group[order], ranks, "amax")
        rows, values = distinct, values[order[last]]
    entry_insert(ring, values, rows)


def entry_insert(store: PageStore, values: Tensor, entries: Tensor) -> None:
    valid = (entries >= 0) & (entries < store.num_entries)
    if not bool(valid.all()):
        values, entries = values[valid], entries[valid]
    for i in range(0, len(entries), _CHUNK):
        part = entries[i : i + _CHUNK]
        store.write(part, *encode(store.layout.format, values[i : i + _CHUNK]))


def indexer_insert(store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool) -> None:
    entry_insert(store, rotate(keys) if hadamard else keys, entries)


def norm_rope_insert(
    compressor: Compressor, values: Tensor, positions: Tensor, store: PageStore, entries: Tensor
) -> None:
    done = (entries >= 0).nonzero().squeeze(1)
    firsts = positions[done] + 1 - compressor.ratio
    _write(compressor, values[done].float(), firsts, store, entries[done])


def chosen_entries(
    store: PageStore, table: Tensor, slots: Tensor, indices: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Physical entries int64[B, K] of logical ones, and which of them there are."""
    valid, size = (indices >= 0) & (indices < lengths[:, None]), store.layout.entries
    logical = indices.long().where(valid, 0)
    return table[slots[:, None], logical // size].long() * size + logical % size, valid


def window_entries(
    ring: PageStore, slots: Tensor, tokens: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    """Physical entries int64[B, window] of the last tokens, and which of them there are."""
    size, first = ring.layout.entries, (tokens - window).clamp_min_(0)
    positions = first[:, None] + torch.arange(window, device=tokens.device)
    return slots[:, None] * size + positions % size, positions < tokens[:, None]


def gather_topk(
    store: PageStore, table: Tensor, slots: Tensor, indices: Tensor, lengths: Tensor, out: Tensor
) -> None:
    _gather(store, *chosen_entries(store, table, slots, indices, lengths), out)


def gather_all(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    indices = torch.arange(out.shape[1], dtype=torch.int32, device=out.device)
    gather_topk(store, table, slots, indices.expand(len(slots), -1), lengths, out)


def gather_window(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
    _gather(ring, *window_entries(ring, slots, tokens, out.shape[1]), out)


def page_copy(store: PageStore, sources: Tensor, targets: Tensor) -> None:
    store.pages.index_copy_(0, targets, store.pages.index_select(0, sources))


def _gather(store: PageStore, entries: Tensor, valid: Tensor, out: Tensor) -> None:
    """Dequantise physical entries [B, K] into out bf16[B, K, D]; zeros where not valid."""
    entries, rows = entries.flatten(), out.view(-1, out.shape[-1])
    if bool(valid.all()):
        _decode_entries(store, entries, rows)
        return
    where = valid.flatten().nonzero().squeeze(1)
    found = out.new_empty(len(where), out.shape[-1])
    _decode_entries(store, entries.index_select(0, where), found)
    rows.zero_()
    rows.index_copy_(0, where, found)


def _decode_entries(store: PageStore, entries: Tensor, out: Tensor) -> None:
    for i in range(0, len(entries), _CHUNK):
        stored = store.read(entries[i : i + _CHUNK])
        decode(store.layout.format, *stored, out[i : i + _CHUNK])


_POOL_CHUNK_FLOATS = 1 << 22  # scores pooled at once

_Fold = tuple[Tensor, Tensor, Tensor]
"""(max, denominator, weighted sum) per channel, of any number of tokens."""


def state_append(
    compressor: Compressor,
    state: Tensor,
    kv: Tensor,
    score: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> None:
    valid = slots >= 0
    if not bool(valid.all()):
        kv, score, slots, positions = kv[valid], score[valid], slots[valid], positions[valid]
    biased = score + compressor.ape[positions % compressor.ratio]
    if state.dim() == 4:
        rows = positions % state.shape[2]
        state[slots, 0, rows] = kv
        state[slots, 1, rows] = biased
        return
    fresh = (positions % compressor.ratio == 0).unsqueeze(1)
    # Zeroed first: whatever the last group left, a NaN included, must not reach the new one.
    top, denominator, weighted = state[slots].masked_fill_(fresh.unsqueeze(2), 0.0).unbind(1)
    older = (top.masked_fill(fresh, -torch.inf), denominator, weighted)
    state[slots] = _merge(older, (biased, torch.ones_like(biased), kv))


def flush(
    compressor: Compressor,
    state: Tensor,
    slots: Tensor,
    positions: Tensor,
    store: PageStore,
    entries: Tensor,
) -> None:
    if state.dim() == 3:
        _, denominator, weighted = state[slots].unbind(1)
        pooled = weighted / denominator
    else:
        offsets = torch.arange(1 - compressor.rows, 1, device=positions.device)
        rows = (positions[:, None] + offsets) % state.shape[2]
        kv, score = state[slots[:, None], :, rows].unbind(2)
        pooled = _pool(*_halves(compressor, kv, score))
    _write(compressor, pooled, positions + 1 - compressor.ratio, store, entries)


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
    end, m = start + len(kv), compressor.ratio
    positions = torch.arange(start, end, device=kv.device)
    biased = score + compressor.ape[positions % m]
    if state.dim() == 3:
        pooled = _fold_chunk(compressor, state[slot], kv, biased, start)
    else:
        pooled = _pool_chunk(compressor, state[slot], kv, biased, start)
        keep = slice(max(0, len(kv) - state.shape[2]), None)
        rows = positions[keep] % state.shape[2]
        state[slot, 0, rows] = kv[keep]
        state[slot, 1, rows] = biased[keep]
    firsts = torch.arange(start // m, end // m, device=kv.device) * m
    _write(compressor, pooled, firsts, store, entries)


def _halves(compressor: Compressor, kv: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Rows a group pools, [E, rows, C] to [E, rows, d]: with overlap, old half then new half."""
    if not compressor.overlap:
        return kv, score
    m, d = compressor.ratio, compressor.dim
    parts = [torch.cat([x[:, :m, :d], x[:, m:, d:]], dim=1) for x in (kv, score)]
    return parts[0], parts[1]


def _pool(kv: Tensor, score: Tensor) -> Tensor:
    """Softmax over rows and weighted sum, [E, rows, d] to [E, d], a bounded piece at a time."""
    step = max(1, _POOL_CHUNK_FLOATS // (kv.shape[1] * kv.shape[2]))
    pooled = kv.new_empty(kv.shape[0], kv.shape[2])
    for i in range(0, len(kv), step):
        part = score[i : i + step]
        weight = torch.exp(part - part.amax(dim=1, keepdim=True))
        total = weight.sum(dim=1)
        pooled[i : i + step] = (weight.mul_(kv[i : i + step])).sum(dim=1).div_(total)
    return pooled


def _pool_chunk(
    compressor: Compressor, state: Tensor, kv: Tensor, score: Tensor, start: int
) -> Tensor:
    """Entries completed by a chunk, pooled: rows before ``start`` come from the ring."""
    m, end = compressor.ratio, start + len(kv)
    count = end // m - start // m
    base = (start // m) * m - (m if compressor.overlap else 0)
    older = torch.arange(base, start, device=kv.device) % state.shape[1]
    kv = torch.cat([state[0, older], kv])
    score = torch.cat([state[1, older], score])
    groups = (count, compressor.rows, compressor.channels)
    strides = (m * compressor.channels, compressor.channels, 1)
    return _pool(
        *_halves(compressor, kv.as_strided(groups, strides), score.as_strided(groups, strides))
    )


def _fold_chunk(
    compressor: Compressor, state: Tensor, kv: Tensor, score: Tensor, start: int
) -> Tensor:
    """Entries completed by a chunk from the online state, which keeps the last group's fold."""
    m, end, pooled = compressor.ratio, start + len(kv), []
    for first in range(start // m * m, end, m):
        rows = slice(max(first - start, 0), min(first + m, end) - start)
        top = score[rows].amax(dim=0)
        weight = torch.exp(score[rows] - top)
        fold = top, weight.sum(dim=0), (weight * kv[rows]).sum(dim=0)
        before = (state[0], state[1], state[2])
        state.copy_(_merge(before, fold) if first < start else torch.stack(fold))
        if first + m <= end:
            pooled.append(state[2] / state[1])
    return torch.stack(pooled) if pooled else kv.new_empty(0, compressor.dim)


def _merge(a: _Fold, b: _Fold) -> Tensor:
    """Combine two folds over different tokens, [..., d] each, to [..., 3, d]."""
    top = torch.maximum(a[0], b[0])
    left, right = torch.exp(a[0] - top), torch.exp(b[0] - top)
    return torch.stack([top, a[1] * left + b[1] * right, a[2] * left + b[2] * right], dim=-2)


def _write(
    compressor: Compressor, pooled: Tensor, positions: Tensor, store: PageStore, entries: Tensor
) -> None:
    """RMSNorm, RoPE at the group's first position, Hadamard where asked, quantise, store."""
    scale = torch.rsqrt(pooled.square().mean(dim=-1, keepdim=True) + compressor.norm_eps)
    normed = pooled * scale * compressor.norm_weight
    if compressor.round_norm:
        normed = normed.bfloat16().float()
    pairs = compressor.rotated_pairs
    if compressor.has_table:
        cos, sin = compressor.rope[positions // compressor.ratio].chunk(2, dim=1)
    else:
        angles = positions.double()[:, None] * compressor.rope
        cos, sin = angles.cos().float(), angles.sin().float()
    _turn(normed[:, compressor.dim - 2 * pairs :], cos, sin)
    made = normed.bfloat16() if compressor.round_rope else normed
    indexer_insert(store, made, entries, compressor.hadamard)


def _turn(tail: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate pairs of neighbouring channels in place."""
    real, imaginary = tail[..., 0::2].clone(), tail[..., 1::2].clone()
    tail[..., 0::2] = real * cos - imaginary * sin
    tail[..., 1::2] = real * sin + imaginary * cos


def step_write(
    ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor, parts: Parts
) -> None:
    window_insert(ring, values, slots, positions)
    for part in parts:
        state_append(part.compressor, part.state, part.kv, part.score, slots, positions)
        done = (part.entries >= 0).nonzero().squeeze(1)
        if len(done):
            group = slots[done], positions[done]
            flush(part.compressor, part.state, *group, part.store, part.entries[done])


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
    _turn(values[..., dims - turns.shape[-1] :], *turns[:, None].chunk(2, dim=-1))
    turned = values.bfloat16().view(-1, dims)
    data, scales = encode(_QUERY, rotate(turned) if hadamard else turned)
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
    for t, length in enumerate(seen):
        keys = _keys(blocks, t, out, length)
        for first in range(0, len(keys), _KEYS):
            decoded = _decode(store, table[slots[t]], keys[first : first + _KEYS])
            scores = weights[t] @ (values[t] @ decoded.T).relu_()
            out[t, first : first + len(decoded)] = scores


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
    decode(store.layout.format, *stored, values)
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
            chosen = torch.arange(int(entries.lengths[t]))
            if entries.indices is not None:
                asked = entries.indices[t].long()
                chosen = asked[(asked >= 0) & (asked < len(chosen))]
            parts.append(_decode(entries.store, entries.table[slot], chosen))
        values = torch.cat(parts)
        if len(values):
            logits = (queries[t].float() @ values.T).mul_(scale)
            lse[t] = logits.logsumexp(dim=1)
            total = torch.logaddexp(lse[t], sinks)
            out[t] = (logits - total[:, None]).exp_() @ values


def _physical(row: Tensor, indices: Tensor, page_entries: int) -> Tensor:
    """Physical entries of logical ones, int64[n], by a slot's row of the table."""
    return row[indices // page_entries].long() * page_entries + indices % page_entries
