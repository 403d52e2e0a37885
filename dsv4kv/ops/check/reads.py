"""Calls of a decode step's reads: several tokens of a request, one of none, one that sees nothing.

And how their results are compared: choices exactly, sums within what an order of summation and
16-bit factors can make of them.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.schedule import AttentionType
from dsv4kv.ops import reference_codec
from dsv4kv.ops.check.maker import Make, Maker
from dsv4kv.ops.compressor import rope_rows
from dsv4kv.ops.contract import Entries
from dsv4kv.ops.reference_reads import QUERY
from dsv4kv.ops.tolerance import is_close

_TOKENS = 6
_ROOM = 2  # columns after the longest request
_CHOSEN = 24  # of a top k: some requests have fewer


def _tokens(maker: Maker, layout: PageLayout) -> list[Any]:
    """[pages, table, slots, lengths] of six tokens, three of them of one request."""
    store, table, slots, lengths = maker.requests(layout)
    drafts, longest = torch.tensor([2, 1, 0]), lengths[1]
    return [
        store,
        table,
        torch.cat([slots[:1], slots[1].expand(3), slots[2:], torch.tensor([-1])]),
        torch.cat([lengths[:1], longest - drafts, lengths[2:], torch.tensor([4])]),
    ]


def _blocks(maker: Maker, lengths: Tensor, size: int) -> Tensor:
    """Some blocks of each token, the last it sees among them, in ascending order: int32[T, 4]."""
    found = torch.full((len(lengths), 4), -1, dtype=torch.int32)
    for t, length in enumerate(lengths.tolist()):
        count = -(-length // size)
        chosen = {count - 1, *maker.order(max(count, 1))[:3].tolist()} if count else set()
        found[t, : len(chosen)] = torch.tensor(sorted(chosen))
    return found


def indexer_query(config: DSV4Config, ratio: int, hadamard: bool) -> Make:
    """Tokens at the first position, at the last, and between."""

    def make(maker: Maker) -> list[Any]:
        positions = torch.tensor([0, 5, config.max_context_tokens - 1])
        shape = len(positions), config.index_heads
        powers = 2.0 ** maker.whole(-6, 6, *shape, 1)
        queries = (maker.normal(*shape, config.index_dim) * powers).bfloat16()
        turns = rope_rows(config, ratio, positions)
        out = maker.output(*shape, config.index_dim, dtype=torch.uint8)
        weights = maker.output(*shape, dtype=torch.float32)
        return [queries, maker.normal(*shape), turns, hadamard, out, weights]

    return make


def index_scores(config: DSV4Config, keys: PageLayout, block_entries: int | None = None) -> Make:
    """All keys, with room after the longest request, or those of some blocks."""

    def make(maker: Maker) -> list[Any]:
        requests = _tokens(maker, keys)
        blocks = _blocks(maker, requests[-1], block_entries) if block_entries else None
        shape = _TOKENS, config.index_heads
        values = maker.normal(*shape, config.index_dim) * 8
        codes = values.to(torch.float8_e4m3fn).view(torch.uint8)
        width = 4 * block_entries if block_entries else int(requests[-1].max()) + _ROOM
        out = maker.output(_TOKENS, width, dtype=torch.float32)
        return [*requests, codes, maker.normal(*shape), blocks, out]

    return make


def select_blocks(block_entries: int) -> Make:
    """Scores of which many are equal; fewer blocks than are asked for, and more."""

    def make(maker: Maker) -> list[Any]:
        lengths = torch.tensor([9, 70, 1, 0])
        scores = maker.whole(-3, 4, 4, 70).float()
        return [scores, lengths, block_entries, maker.output(4, 5, dtype=torch.int32)]

    return make


def select_topk(config: DSV4Config, main: PageLayout, block_entries: int | None = None) -> Make:
    """Scores of which many are equal, of all entries or of some blocks."""

    def make(maker: Maker) -> list[Any]:
        _, table, slots, lengths = _tokens(maker, main)
        blocks = _blocks(maker, lengths, block_entries) if block_entries else None
        width = 4 * block_entries if block_entries else int(lengths.max())
        scores = maker.whole(-20, 20, _TOKENS, width).float()
        outputs = (maker.output(_TOKENS, _CHOSEN, dtype=torch.int32) for _ in range(2))
        return [scores, lengths, blocks, table, slots, main.entries, *outputs]

    return make


def attend(
    config: DSV4Config, ring: PageLayout, main: PageLayout | None, kind: AttentionType
) -> Make:
    """Windows that are nearly empty, full and turned around; chosen entries or all, or none."""

    def make(maker: Maker) -> list[Any]:
        store, entries = maker.store(ring, 4, filled=True), None
        slots, tokens = torch.tensor([2, 0, 0, 0, 3, -1]), torch.tensor([7, 998, 999, 1000, 0, 9])
        if main:
            pages, table, slots, lengths = _tokens(maker, main)
            entries = Entries(pages, table, lengths, None)
            if kind is AttentionType.CSA:
                entries = Entries(pages, table, lengths, _chosen(maker, lengths))
        shape = _TOKENS, config.num_heads, ring.format.dims
        queries = (maker.normal(*shape) / 4).bfloat16()
        sinks = maker.normal(config.num_heads)
        sinks[1] = -math.inf
        scale = ring.format.dims**-0.5
        outputs = maker.output(*shape), maker.output(*shape[:2], dtype=torch.float32)
        window = config.window_tokens
        return [store, slots, tokens, window, entries, queries, sinks, scale, *outputs]

    return make


def _chosen(maker: Maker, lengths: Tensor) -> Tensor:
    """Indices of which some are −1, some beyond what a token sees and some there twice."""
    indices = maker.whole(0, 2**31 - 1, len(lengths), 40) % (lengths[:, None] + 3)
    indices[:, ::7], indices[:, 3] = -1, indices[:, 2]
    return indices.int()


_Arguments = Mapping[str, Any]

SCORE_ERROR = 2.0**-8
"""Of a score, against the token's largest: some engines have bf16 scores."""

OUTPUT_ERROR = 2.0**-6
"""Of an attention output, against its head's largest: weights and output are rounded to bf16."""

LSE_ERROR = 2.0**-10


def _queries(found: _Arguments, expected: _Arguments) -> Iterator[str]:
    heads, dims = expected["out"].shape[1:]
    constant = expected["weights"].double() * (heads * dims) ** -0.5
    ratios, right = (each["out_weights"].double() / constant for each in (found, expected))
    scales = ratios.log2().round().exp2()
    for t, h in torch.cartesian_prod(torch.arange(len(ratios)), torch.arange(heads)).tolist():
        if not abs(float(ratios[t, h] / scales[t, h]) - 1) < 1e-5:
            yield (
                f"token {t}, head {h}: its weight is {found['out_weights'][t, h]:g}, which is not "
                f"{expected['weights'][t, h]:g} times a power of two times {heads * dims}^-0.5."
            )
        codes, rows = bytes(found["out"][t, h].tolist()), bytes(expected["out"][t, h].tolist())
        scale = struct.pack("<f", float(right[t, h].log2().round().exp2()))
        mine = reference_codec.decode(QUERY, codes, struct.pack("<f", float(scales[t, h])))
        values = torch.tensor(mine, dtype=torch.float64)
        if not is_close(QUERY, values, (rows, scale), rotated=found["hadamard"]):
            wanted = torch.tensor(reference_codec.decode(QUERY, rows, scale), dtype=torch.float64)
            channel = int((values - wanted).abs().nan_to_num(nan=math.inf).argmax())
            yield (
                f"token {t}, head {h} has {values[channel]:g} in channel {channel}, and the "
                f"reference {wanted[channel]:g}."
            )


def _scores(found: _Arguments, expected: _Arguments) -> Iterator[str]:
    mine, right = found["out"].clone(), expected["out"]
    if found["blocks"] is None:  # what comes after the longest may be left as it was
        spare = mine[:, int(found["lengths"].max()) :]
        spare.masked_fill_(spare.isnan(), -math.inf)
    largest = right.where(right.isfinite(), 0).abs().amax(dim=1, keepdim=True)
    close = (mine - right).abs() <= SCORE_ERROR * largest
    for t, column in ((mine != right) & ~close).nonzero().tolist():
        value, wanted = float(mine[t, column]), float(right[t, column])
        yield f"token {t}, column {column} is {value:g}, and the reference has {wanted:g}."


def _choices(found: _Arguments, expected: _Arguments) -> Iterator[str]:
    for name in ("out", "entries"):
        if name in found:
            for t, place in (found[name] != expected[name]).nonzero().tolist():
                value, wanted = int(found[name][t, place]), int(expected[name][t, place])
                yield (
                    f"token {t} has {value} as number {place} of {name!r}, and the reference "
                    f"{wanted}."
                )


def _attention(found: _Arguments, expected: _Arguments) -> Iterator[str]:
    mine, right = found["out"].double(), expected["out"].double()
    largest = right.abs().amax(dim=2, keepdim=True)
    for t, h, channel in ((mine - right).abs() <= OUTPUT_ERROR * largest).logical_not().nonzero():
        value, wanted = float(mine[t, h, channel]), float(right[t, h, channel])
        yield (
            f"token {int(t)}, head {int(h)}, channel {int(channel)} is {value:g}, and the "
            f"reference has {wanted:g}."
        )
    close = torch.isclose(found["lse"], expected["lse"], rtol=LSE_ERROR, atol=LSE_ERROR)
    for t, h in close.logical_not().nonzero().tolist():
        value, wanted = float(found["lse"][t, h]), float(expected["lse"][t, h])
        yield f"token {t}, head {h}: lse is {value:g}, and the reference has {wanted:g}."


COMPARE: Mapping[str, Callable[[_Arguments, _Arguments], Iterator[str]]] = {
    "indexer_query": _queries,
    "index_scores": _scores,
    "select_blocks": _choices,
    "select_topk": _choices,
    "attend": _attention,
}
"""What is wrong with what an operation wrote, by names of the contract's arguments."""
