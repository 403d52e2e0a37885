"""Launch plans of an indexer's queries and scores.

Slots, lengths and tables are read on the device, so a captured launch follows them. Scores are
made by blocks that stay, and share the keys of all tokens out evenly, whatever the lengths.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import FORMATS, EntryFormat, PageLayout
from dsv4kv.ops.kernels.example import (
    REQUESTS,
    WIDTH,
    Example,
    Promise,
    empty,
    numbers,
    pages_of,
    title,
)
from dsv4kv.ops.kernels.launch import (
    MOST_BLOCKS,
    WARP,
    KernelModule,
    Launch,
    blocks_for,
    float_bits,
    format_macros,
    multiprocessors,
)
from dsv4kv.ops.storage import PageStore

_DIMS = 128
_QUERY = PageLayout(FORMATS["indexer"]["fp8"], 32)  # its entries are no part of a query
_THREADS = 256
_LANES = 16  # of a head

PROMISES = {
    "indexer_query *": Promise(loads=128, stores=32),
    "index_scores *": Promise(products=True),
}
"""See ``catalogue.PROMISES``."""


def plan_indexer_query(
    queries: Tensor,
    weights: Tensor,
    turns: Tensor,
    hadamard: bool,
    out: Tensor,
    out_weights: Tensor,
) -> Launch:
    """See ``contract.Backend.indexer_query``; vectors have 128 channels."""
    tokens, heads, dims = queries.shape
    _refuse_other_dims(dims)
    macros = dict(format_macros(_QUERY)) | {
        "DSV_ROPE_PAIRS": turns.shape[1] // 2,
        "DSV_HADAMARD": int(hadamard),
    }
    sizes = (tokens * heads, heads, float_bits((heads * dims) ** -0.5))
    return Launch(
        KernelModule("query.cuh", tuple(sorted(macros.items()))),
        "indexer_query",
        (blocks_for(tokens * heads, _THREADS // _LANES, MOST_BLOCKS), 1),
        _THREADS,
        (queries, weights, turns, out, out_weights, *sizes),
    )


@dataclass(frozen=True)
class _Block:
    """What a block of threads has in shared memory, see ``scores.cuh``.

    Attributes:
        tokens: Query tokens of a request that are scored with one read of its keys.
        stages: Of 32 keys a warp, one of which it works on; the others are under way.
    """

    tokens: int
    stages: int

    def shared_bytes(self, entry: EntryFormat, heads: int) -> int:
        """Keys of every warp, then queries, weights and lengths of the tokens."""
        stage = _KEYS * (entry.data_row_bytes + 8)
        queries = self.tokens * (-(-heads // 8) * 8 * (_DIMS + 4) + 4) + 4
        return -(-(_WARPS * self.stages * stage + queries) // 16) * 16


_WARPS, _KEYS = 4, 32
_BLOCK, _BLOCK_OF_BF16 = _Block(tokens=4, stages=3), _Block(tokens=2, stages=2)
RESIDENT_BLOCKS = 2
"""Blocks that a multiprocessor holds: what its shared memory and its registers allow."""


def plan_index_scores(
    store: PageStore,
    table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    queries: Tensor,
    weights: Tensor,
    blocks: Tensor | None,
    out: Tensor,
) -> Launch:
    """See ``contract.Backend.index_scores``; keys have 128 channels.

    Tokens of a request share a read of its keys where their numbers are in one run of four (of
    bf16 keys two): all of them if each request has 1, 2 or 4.
    """
    entry, heads = store.layout.format, queries.shape[1]
    _refuse_other_dims(entry.dims)
    block = _BLOCK_OF_BF16 if entry.value == "bf16" else _BLOCK
    shared = block.shared_bytes(entry, heads)
    macros = dict(format_macros(store.layout)) | {
        "DSV_HEADS": heads,
        "DSV_TOKENS": block.tokens,
        "DSV_STAGES": block.stages,
        "DSV_SHARED_BYTES": shared,
    }
    candidates, count = (0, 0) if blocks is None else (blocks, blocks.shape[1])
    return Launch(
        KernelModule("scores.cuh", tuple(sorted(macros.items()))),
        "index_scores",
        (RESIDENT_BLOCKS * multiprocessors(store.pages), 1),
        _WARPS * WARP,
        (
            *(store.pages, table, slots, lengths, queries, weights, candidates, out),
            *(*out.shape, count, *table.shape, len(store.pages)),
        ),
        shared_bytes=shared,
    )


def _refuse_other_dims(dims: int) -> None:
    if dims != _DIMS:
        raise ConfigError(
            f"indexer keys of {dims} channels cannot be scored on a GPU: take {_DIMS}, or backend "
            "cpu."
        )


def examples(config: DSV4Config, layout: PageLayout) -> Iterator[Example]:
    """Queries, and scores of keys in pages."""
    heads, store = config.index_heads, pages_of(layout)
    weights = empty(torch.float32, REQUESTS, heads)
    queries = empty(torch.uint8, REQUESTS, heads, config.index_dim)
    vectors = empty(torch.bfloat16, *queries.shape)
    turns = empty(torch.float32, REQUESTS, config.rope_dim)
    query = plan_indexer_query(vectors, weights, turns, True, queries, weights)
    yield Example("with Hadamard", query)
    table, slots = empty(torch.int32, REQUESTS, WIDTH), numbers(REQUESTS)
    out = empty(torch.float32, REQUESTS, WIDTH * layout.entries)
    scoring = plan_index_scores(store, table, slots, slots, queries, weights, None, out)
    yield Example(f"{title(layout)}, {heads} heads", scoring)
