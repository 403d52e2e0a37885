"""The literal backend: every operation written out token by token, in float64 where it matters.

Too slow to serve anything; it decides what is right. Arguments as in ``ops.spec``.

Entries become bytes value by value. All arithmetic there is exact (Python floats are float64)
except where a format prescribes float32. Sources: DeepSeek-V4 reference inference code
(quantisation by groups, power-of-two scales), OCP Microscaling Formats 1.0 (E4M3, E2M1, E8M0).
"""

import math
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops.spec import write_in_turn
from dsv4kv.ops.storage import Compressor, Entries, PageStore, Parts

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e4m3(code: int) -> float:
    exponent, mantissa = code >> 3, code & 7
    if exponent == 0:
        return math.ldexp(mantissa, -9)
    return math.ldexp(8 + mantissa, exponent - 10)


E4M3 = tuple(_e4m3(code) for code in range(127))  # 127 is NaN

_GRID = {"e4m3": E4M3, "e2m1": E2M1}

# Smallest group maximum, so that an all-zero group has a finite scale. 1e-4 is the reference
# code's choice for FP8 (FlashMLA floors the scale instead, TensorRT-LLM uses 1e-8); for FP4 it is
# the smallest maximum whose power-of-two scale is a normal float32.
AMAX_FLOOR = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}


SMALLEST_NORMAL = 2.0**-126
"""Of float32: the smallest scale that is stored as it is (vLLM)."""


def fl32(value: float) -> float:
    """Round to float32, nearest even."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def round_to_grid(value: float, grid: Sequence[float]) -> int:
    """Code of the grid value nearest to |value|; ties go to the even code, overflow saturates."""
    size = abs(value)
    above = bisect_left(grid, size)
    if above == len(grid):
        return above - 1
    if above == 0 or grid[above] == size:
        return above
    down, up = size - grid[above - 1], grid[above] - size
    if down == up:
        return above if above % 2 == 0 else above - 1
    return above if up < down else above - 1


def power_of_two_exponent(amax: float, largest: float) -> int:
    """ceil(log2(amax · fl32(1 / largest))), the product rounded to float32."""
    mantissa, exponent = math.frexp(fl32(amax * fl32(1.0 / largest)))
    return exponent - 1 if mantissa == 0.5 else exponent


def encode(entry: EntryFormat, values: Sequence[float]) -> tuple[bytes, bytes]:
    """Encode values of one entry to (values and tail, scales), in float32 if they are not bf16."""
    if entry.value == "bf16":
        return _bf16_bytes(values), b""
    step = entry.group or entry.value_dims
    codes, scales, sign = bytearray(), bytearray(), 8 if entry.value == "e2m1" else 128
    for start in range(0, entry.value_dims, step):
        group = values[start : start + step]
        scale, stored = _scale(entry, group)
        for value in group:
            quotient = fl32(value / scale)
            negative = math.copysign(1.0, quotient) < 0
            codes.append(round_to_grid(quotient, _GRID[entry.value]) | (sign if negative else 0))
        scales += stored
    scales += bytes(entry.scale_padding)
    data = bytes(codes)
    if entry.value == "e2m1":  # two in a byte
        data = bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True))
    return data + _bf16_bytes(values[entry.value_dims :]), bytes(scales)


def decode(entry: EntryFormat, data: bytes, scales: bytes) -> list[float]:
    """Decode what ``encode`` gives to the values that are read: exact, or rounded to bf16."""
    if entry.value == "bf16":
        return _bf16_values(data)
    values = []
    for i in range(entry.value_dims):
        if entry.value == "e2m1":
            code = data[i // 2] >> 4 if i % 2 else data[i // 2] & 15
            sign, size = code >> 3, E2M1[code & 7]
        else:
            sign, size = data[i] >> 7, E4M3[data[i] & 127]
        scale = _stored_scale(entry, scales, i // entry.group) if entry.group else 1.0
        values.append((-size if sign else size) * scale)
    if entry.scale == "amax_fp32":
        values = _bf16_values(_bf16_bytes(values))
    return values + _bf16_values(data[entry.value_bytes :])


def decode_scales(entry: EntryFormat, scales: bytes) -> list[float]:
    """What the values of each group are multiplied by; one 1 without scales."""
    groups = range(entry.groups)
    return [_stored_scale(entry, scales, group) for group in groups] or [1.0]


def _scale(entry: EntryFormat, group: Sequence[float]) -> tuple[float, bytes]:
    if entry.scale == "none":
        return 1.0, b""
    if entry.scale == "amax_fp32":
        scale = max(fl32(max(map(abs, group)) / 448.0), SMALLEST_NORMAL)
        return scale, struct.pack("<f", scale)
    amax = max(AMAX_FLOOR[entry.value], *(abs(value) for value in group))
    largest = _GRID[entry.value][-1]
    if entry.scale == "e4m3":
        code = max(round_to_grid(fl32(amax * fl32(1.0 / largest)), E4M3), 1)
        return E4M3[code], bytes([code])
    exponent = power_of_two_exponent(amax, largest)
    stored = struct.pack("<f", 2.0**exponent) if entry.scale == "fp32" else bytes([exponent + 127])
    return 2.0**exponent, stored


def _stored_scale(entry: EntryFormat, scales: bytes, group: int) -> float:
    if entry.scale in ("fp32", "amax_fp32"):
        return float(struct.unpack_from("<f", scales, 4 * group)[0])
    code = scales[group]
    return E4M3[code] if entry.scale == "e4m3" else 2.0 ** (code - 127)


def _bf16_bytes(values: Sequence[float]) -> bytes:
    """bf16 is the upper half of a float32, rounded to nearest even."""
    words = (struct.unpack("<I", struct.pack("<f", value))[0] for value in values)
    return b"".join(struct.pack("<I", word + 0x7FFF + (word >> 16 & 1))[2:] for word in words)


def _bf16_values(data: bytes) -> list[float]:
    words = [data[i : i + 2] for i in range(0, len(data), 2)]
    return [float(struct.unpack("<f", b"\0\0" + word)[0]) for word in words]


def rotate(values: Tensor) -> Tensor:
    """Rotate [n, d] or [d] by the Sylvester-Hadamard matrix over sqrt(d), rounded to bf16."""
    matrix = torch.ones(1, 1, dtype=values.dtype)
    while matrix.shape[0] < values.shape[-1]:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (values @ matrix / math.sqrt(values.shape[-1])).bfloat16()


def write(store: PageStore, entry: int, values: Tensor) -> None:
    """Encode values [D] into a physical entry."""
    contents = encode(store.layout.format, values.float().tolist())
    page, parts = _parts_of(store, entry)
    for offsets, content in zip(parts, contents, strict=True):
        page[offsets] = torch.tensor(list(content), dtype=torch.uint8)


def read_bytes(store: PageStore, entry: int) -> tuple[bytes, bytes]:
    """The bytes of a physical entry: values and tail, and scales."""
    page, (data, scales) = _parts_of(store, entry)
    return bytes(page[data].tolist()), bytes(page[scales].tolist())


def _parts_of(store: PageStore, entry: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The page of a physical entry, and where its values and tail and its scales are in it."""
    number, row = divmod(entry, store.layout.entries)
    layout, form = store.layout, store.layout.format
    start = layout.data_offset(row)
    values = start + torch.arange(form.value_bytes)
    tail = start + form.tail_start + torch.arange(form.tail_bytes)
    scales = layout.scale_offset(row) + torch.arange(form.scale_bytes)
    return store.pages[number], (torch.cat([values, tail]), scales)


def read(store: PageStore, entry: int) -> Tensor:
    """A physical entry as it is read: bf16[D]."""
    values = decode(store.layout.format, *read_bytes(store, entry))
    return torch.tensor(values, dtype=torch.float64).bfloat16()


def window_insert(ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor) -> None:
    order = sorted(range(len(slots)), key=lambda t: int(positions[t]))
    for t in order:
        if slots[t] >= 0:
            row = int(positions[t]) % ring.layout.entries
            write(ring, int(slots[t]) * ring.layout.entries + row, values[t])


def entry_insert(store: PageStore, values: Tensor, entries: Tensor) -> None:
    for value, entry in zip(values, entries.tolist(), strict=True):
        if 0 <= entry < store.num_entries:
            write(store, entry, value)


def indexer_insert(store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool) -> None:
    entry_insert(store, rotate(keys.double()) if hadamard else keys, entries)


def norm_rope_insert(
    compressor: Compressor, values: Tensor, positions: Tensor, store: PageStore, entries: Tensor
) -> None:
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
    step = {"ring": ring, "values": values, "slots": slots, "positions": positions, "parts": parts}
    write_in_turn(window_insert, state_append, flush, **step)


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
    out.zero_()
    for b, slot in enumerate(slots.tolist()):
        for k, index in enumerate(indices[b].tolist()):
            if 0 <= index < lengths[b]:
                out[b, k] = read(store, _physical(table[slot], index, store.layout.entries))


def gather_all(
    store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
) -> None:
    indices = torch.arange(out.shape[1], dtype=torch.int32).expand(len(slots), -1)
    gather_topk(store, table, slots, indices, lengths, out)


def gather_window(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
    out.zero_()
    size = ring.layout.entries
    for b, (slot, count) in enumerate(zip(slots.tolist(), tokens.tolist(), strict=True)):
        first = max(0, count - out.shape[1])
        for position in range(first, count):
            out[b, position - first] = read(ring, slot * size + position % size)


def page_copy(store: PageStore, sources: Tensor, targets: Tensor) -> None:
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
    if compressor.has_table:
        turns = compressor.rope[position // compressor.ratio].tolist()
    else:
        angles = [position * frequency for frequency in compressor.rope.tolist()]
        turns = [turn(angle) for turn in (math.cos, math.sin) for angle in angles]
    turned = _turn(normed, turns)
    if not compressor.round_rope:
        return turned
    rounded = turned.bfloat16()
    return rotate(rounded.double()) if compressor.hadamard else rounded


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


def indexer_query(
    queries: Tensor,
    weights: Tensor,
    turns: Tensor,
    hadamard: bool,
    out: Tensor,
    out_weights: Tensor,
) -> None:
    tokens, heads, dims = queries.shape
    constant = torch.tensor((heads * dims) ** -0.5)
    for t in range(tokens):
        for h in range(heads):
            turned = _turn(queries[t, h].double(), turns[t].tolist()).bfloat16()
            made = rotate(turned.double()) if hadamard else turned
            data, scale = encode(QUERY, made.tolist())
            out[t, h] = torch.tensor(list(data), dtype=torch.uint8)
            (factor,) = decode_scales(QUERY, scale)
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
    values = torch.tensor((*E4M3, math.nan), dtype=torch.float64)
    out.fill_(-math.inf)
    for t, slot in enumerate(slots.tolist()):
        query = values[queries[t].long() & 127] * torch.where(queries[t] > 127, -1.0, 1.0)
        for column, index in _columns(blocks, t, out.shape[1], _seen(slot, lengths[t])):
            key = read(store, _physical(table[slot], index, store.layout.entries)).double()
            out[t, column] = (weights[t].double() * (query @ key).clamp(min=0)).sum()


def select_blocks(scores: Tensor, lengths: Tensor, block_entries: int, out: Tensor) -> None:
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
    out.zero_()
    lse.fill_(math.inf)
    for t, slot in enumerate(slots.tolist()):
        count, size = int(tokens[t]) if slot >= 0 else 0, ring.layout.entries
        positions = range(max(0, count - window), count)
        seen = [read(ring, slot * size + position % size) for position in positions]
        if entries:
            length = _seen(slot, entries.lengths[t])
            every = range(length) if entries.indices is None else entries.indices[t].tolist()
            for index in every:
                if 0 <= index < length:
                    row, per_page = entries.table[slot], entries.store.layout.entries
                    seen.append(read(entries.store, _physical(row, index, per_page)))
        if not seen:
            continue
        values = torch.stack(seen).double()
        logits = scale * (queries[t].double() @ values.T)
        lse[t] = torch.logsumexp(logits, dim=1)
        denominator = torch.logaddexp(torch.logsumexp(logits, dim=1), sinks.double())
        out[t] = (logits - denominator[:, None]).exp() @ values


def _seen(slot: int, length: Tensor) -> int:
    return int(length) if slot >= 0 else 0


def _columns(blocks: Tensor | None, t: int, width: int, length: int) -> Iterator[tuple[int, int]]:
    size = width // blocks.shape[1] if blocks is not None and blocks.shape[1] else width
    for column in range(width):
        block = 0 if blocks is None else int(blocks[t, column // size])
        index = block * size + column % size
        if block >= 0 and index < length:
            yield column, index


def _largest(scores: list[float], count: int) -> list[int]:
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return sorted(best[:count])


def _physical(row: Tensor, index: int, page_entries: int) -> int:
    return int(row[index // page_entries]) * page_entries + index % page_entries
