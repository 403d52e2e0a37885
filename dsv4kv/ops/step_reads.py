"""What the reads of a decode step move and compute, layer by layer, as the schedule says.

Of many tokens at once: those of a step, or every length that a request will have. Needs no torch
and no GPU.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import PageLayout
from dsv4kv.model.schedule import AttentionType, chooses_candidates, scores_candidates
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops import table

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Read:
    """An operation of T tokens, on each of some layers that are alike.

    Attributes:
        layers: The layers.
        operation: Its name in ``ops.contract``.
        own_bytes: Keys, entries and scores that a token reads or writes for itself, and where
            they are, int64[T].
        shared_bytes: Keys that all tokens of a request in one step read together, and where they
            are, int64[T]: up to and with this token.
        query_bytes: A token's other useful bytes: queries, outputs, weights, as many at any
            context.
        flops: Floating-point operations of its matrix products, int64[T].
    """

    layers: tuple[int, ...]
    operation: str
    own_bytes: Ints
    shared_bytes: Ints
    query_bytes: int
    flops: Ints

    def step_bytes(self, last: Ints | slice = slice(None)) -> int:
        """Useful bytes on one layer, as ``ops.table`` counts them, of the tokens of one step.

        last: which tokens are the last ones of their requests; all of them without drafts.
        """
        own = self.own_bytes.sum() + self.shared_bytes[last].sum()
        return int(own) + len(self.own_bytes) * self.query_bytes


@dataclass(frozen=True)
class _Layer:
    """What the reads of a layer follow from.

    Attributes:
        ratio: Tokens per compressed entry; 0 without.
        every: Whether it attends to all of them, not to chosen ones.
        window: Ring of its window.
        main: Page of the entries that it reads.
        keys: Page of the keys that it scores; None where another layer chooses.
        is_source: Whether it chooses the candidate blocks.
        is_narrow: Whether it scores those alone.
    """

    ratio: int
    every: bool
    window: PageLayout | None
    main: PageLayout | None
    keys: PageLayout | None
    is_source: bool
    is_narrow: bool


def decode_reads(
    config: DSV4Config, schemas: Sequence[LayerCacheSchema], tokens: Ints
) -> Iterator[Read]:
    """Reads of tokens that make their requests ``tokens`` int64[T] tokens long.

    schemas: the layers held; those that own no entries read their owner's. A layer for which
    another one chooses (IndexCache, DeepSeek-V4.1) only attends. DeepSeek-V3.2 is counted as if
    its values were whole entries; they are a part of them, which ``attend`` does not read.
    """
    held = {schema.layer.layer_idx: schema for schema in schemas}
    alike: dict[_Layer, list[int]] = defaultdict(list)
    for index, schema in held.items():
        alike[_look_at(config, held, schema)].append(index)
    for layer, indices in alike.items():
        if layer.keys:
            yield from _choice(config, tuple(indices), layer, layer.keys, tokens // layer.ratio)
        yield _attention(config, tuple(indices), layer, tokens)


def _look_at(
    config: DSV4Config, held: dict[int, LayerCacheSchema], schema: LayerCacheSchema
) -> _Layer:
    spec, owner = schema.layer, held[schema.layer.kv_owner]
    by_blocks = config.candidates is not None
    return _Layer(
        ratio=spec.ratio,
        every=spec.attn is AttentionType.HCA,
        window=schema.window,
        main=owner.main,
        keys=owner.indexer if spec.selects else None,
        is_source=by_blocks and chooses_candidates(config, spec),
        is_narrow=by_blocks and scores_candidates(config, spec),
    )


def _choice(
    config: DSV4Config, layers: tuple[int, ...], layer: _Layer, keys: PageLayout, seen: Ints
) -> Iterator[Read]:
    """Queries, scores and top k of layers; ``seen``: keys that each query token sees."""
    heads, dims, none = config.index_heads, config.index_dim, np.zeros_like(seen)
    query = table.indexer_query_bytes(1, heads, dims, config.rope_dim)
    yield Read(layers, "indexer_query", none, none, query, none)

    candidates = config.candidates if layer.is_narrow else None
    scores, blocks = seen, none
    if candidates:
        blocks = np.minimum(-(-seen // candidates.block_entries), candidates.blocks)
        last = (seen - 1) % candidates.block_entries + 1  # the newest block, as far as it goes
        scores = (blocks - 1) * candidates.block_entries + last
        own = table.index_scores_bytes(keys.format, scores, blocks, scores, none)
        shared = none
    else:
        own = table.index_scores_bytes(keys.format, none, none, scores, none)
        pages = -(-seen // keys.entries)
        shared = table.index_scores_bytes(keys.format, seen, pages, none, none)
    query = table.index_scores_bytes(keys.format, 0, 0, 0, heads)
    work = table.index_scores_flops(scores, heads, dims)
    yield Read(layers, "index_scores", own, shared, query, work)

    if layer.is_source and config.candidates:
        moved = table.select_blocks_bytes(scores, none + config.candidates.blocks)
        yield Read(layers, "select_blocks", moved, none, 0, none)
    moved = table.select_topk_bytes(scores, blocks, none + config.index_topk)
    yield Read(layers, "select_topk", moved, none, 0, none)


def _attention(config: DSV4Config, layers: tuple[int, ...], layer: _Layer, tokens: Ints) -> Read:
    """Attention to the window and, where there are any, to chosen or all compressed entries."""
    none = np.zeros_like(tokens)
    moved, attended = none, none
    if layer.window:
        attended = np.minimum(tokens, config.window_tokens)
        moved = table.attended_bytes(layer.window.format, attended, none)
    if layer.main and layer.ratio:
        entries = tokens // layer.ratio
        places = -(-entries // layer.main.entries)
        if not layer.every:
            entries = np.minimum(entries, config.index_topk)
            places = none + config.index_topk
        moved = moved + table.attended_bytes(layer.main.format, entries, places)
        attended = attended + entries
    query = table.attend_query_bytes(1, config.num_heads, config.head_dim)
    work = table.attend_flops(attended, config.num_heads, config.head_dim)
    return Read(layers, "attend", moved, none, query, work)
