"""Entries, useful bytes and floating-point operations of a step, by layer and operation.

Counted from the layers' schemas alone: nothing is asked of the cache, and no torch is needed. The
reads of a decode step are counted for many tokens together: all of a step, or every length that a
request will have.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dsv4kv.model import schedule as sd
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops import spec

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Read:
    """An operation of T tokens, on each of some layers that are alike."""

    layers: tuple[int, ...]  # the layers
    operation: str  # its name
    # keys, entries and scores that a token reads or writes for itself, and where they are,
    # int64[T]
    own_bytes: Ints
    # keys that all tokens of a request in one step read together, and where they are, int64[T]: up
    # to and with this token
    shared_bytes: Ints
    # a token's other useful bytes: queries, outputs, weights, as many at any context
    query_bytes: int
    flops: Ints  # floating-point operations of its matrix products, int64[T]

    def step_bytes(self, last: Ints | slice = slice(None)) -> int:
        """Useful bytes on one layer, as ``ops.spec`` counts them, of the tokens of one step.

        last: which tokens are the last ones of their requests; all of them without drafts.
        """
        own = self.own_bytes.sum() + self.shared_bytes[last].sum()
        return int(own) + len(self.own_bytes) * self.query_bytes


@dataclass(frozen=True)
class _Layer:
    """What the reads of a layer follow from."""

    ratio: int  # tokens per compressed entry; 0 without
    every: bool  # whether it attends to all of them, not to chosen ones
    window: PageLayout | None  # ring of its window
    main: PageLayout | None  # page of the entries that it reads
    keys: PageLayout | None  # page of the keys that it scores; None where another layer chooses
    is_source: bool  # whether it chooses the candidate blocks
    is_narrow: bool  # whether it scores those alone


Readers = dict[_Layer, tuple[int, ...]]
"""Layers that read alike."""


def group_readers(config: DSV4Config, schemas: Sequence[LayerCacheSchema]) -> Readers:
    """The layers held by how they read; those that own no entries read their owner's."""
    held = {schema.layer.layer_idx: schema for schema in schemas}
    alike: dict[_Layer, list[int]] = defaultdict(list)
    for index, schema in held.items():
        layer, owner = schema.layer, held[schema.layer.kv_owner]
        kind = _Layer(
            ratio=layer.ratio,
            every=layer.attn is sd.AttentionType.HCA,
            window=schema.window,
            main=owner.main,
            keys=owner.indexer if layer.selects else None,
            is_source=sd.chooses_candidates(config, layer),
            is_narrow=sd.scores_candidates(config, layer),
        )
        alike[kind].append(index)
    return {layer: tuple(indices) for layer, indices in alike.items()}


def decode_reads(
    config: DSV4Config, layers: Sequence[LayerCacheSchema] | Readers, tokens: Ints
) -> Iterator[Read]:
    """Reads of tokens that make their requests ``tokens`` int64[T] tokens long.

    layers: those held, by schema or as ``group_readers`` gives them. A layer for which another one
    chooses (IndexCache, DeepSeek-V4.1) only attends. DeepSeek-V3.2 is counted as if its values
    were whole entries; they are a part of them, which ``attend`` does not read.
    """
    alike = layers if isinstance(layers, dict) else group_readers(config, layers)
    for layer, indices in alike.items():
        if layer.keys:
            yield from _choice(config, indices, layer, layer.keys, tokens // layer.ratio)
        yield _attention(config, indices, layer, tokens)


def _choice(
    config: DSV4Config, layers: tuple[int, ...], layer: _Layer, keys: PageLayout, seen: Ints
) -> Iterator[Read]:
    """Queries, scores and top k of layers; ``seen``: keys that each query token sees."""
    heads, dims, none = config.index_heads, config.index_dim, np.zeros_like(seen)
    query = spec.indexer_query_bytes(1, heads, dims, config.rope_dim)
    yield Read(layers, "indexer_query", none, none, query, none)

    candidates = config.candidates if layer.is_narrow else None
    scores, blocks = seen, none
    if candidates:
        blocks = np.minimum(-(-seen // candidates.block_entries), candidates.blocks)
        last = (seen - 1) % candidates.block_entries + 1  # the newest block, as far as it goes
        scores = (blocks - 1) * candidates.block_entries + last
        own = spec.index_scores_bytes(keys.format, scores, blocks, scores, none)
        shared = none
    else:
        own = spec.index_scores_bytes(keys.format, none, none, scores, none)
        pages = -(-seen // keys.entries)
        shared = spec.index_scores_bytes(keys.format, seen, pages, none, none)
    query = spec.index_scores_bytes(keys.format, 0, 0, 0, heads)
    work = spec.index_scores_flops(scores, heads, dims)
    yield Read(layers, "index_scores", own, shared, query, work)

    if layer.is_source and config.candidates:
        moved = spec.select_blocks_bytes(scores, none + config.candidates.blocks)
        yield Read(layers, "select_blocks", moved, none, 0, none)
    moved = spec.select_topk_bytes(scores, blocks, none + config.index_topk)
    yield Read(layers, "select_topk", moved, none, 0, none)


def _attention(config: DSV4Config, layers: tuple[int, ...], layer: _Layer, tokens: Ints) -> Read:
    """Attention to the window and, where there are any, to chosen or all compressed entries."""
    none = np.zeros_like(tokens)
    moved, attended = none, none
    if layer.window:
        attended = np.minimum(tokens, config.window_tokens)
        moved = spec.attended_bytes(layer.window.format, attended, none)
    if layer.main and layer.ratio:
        entries = tokens // layer.ratio
        places = -(-entries // layer.main.entries)
        if not layer.every:
            entries = np.minimum(entries, config.index_topk)
            places = none + config.index_topk
        moved = moved + spec.attended_bytes(layer.main.format, entries, places)
        attended = attended + entries
    query = spec.attend_query_bytes(1, config.num_heads, config.head_dim)
    work = spec.attend_flops(attended, config.num_heads, config.head_dim)
    return Read(layers, "attend", moved, none, query, work)


@dataclass(frozen=True)
class Pooling:
    """Sizes of a layer's compressor."""

    ratio: int  # tokens of an entry
    rows: int  # tokens that one entry pools
    dim: int  # channels of an entry
    channels: int  # channels of kv and score of one token
    state_rows: int  # rows that stay in the state
    online: bool  # whether the state is the running softmax
    entry: EntryFormat  # format of an entry


def pooling_of(schema: LayerCacheSchema, *, indexer: bool) -> Pooling | None:
    """Of a layer's compressed KV or its indexer keys; None where they are not pooled."""
    page = _page(schema, indexer)
    shape = schema.indexer_state_shape if indexer else schema.state_shape
    if page is None or not shape:
        return None
    overlap, online = 2 if schema.layer.overlaps else 1, len(shape) == 2
    return Pooling(
        ratio=schema.layer.ratio,
        rows=schema.layer.ratio * overlap,
        dim=page.format.dims,
        channels=page.format.dims * overlap,
        state_rows=3 if online else shape[1],
        online=online,
        entry=page.format,
    )


Work = tuple[int, int, int]
"""Entries (rows, tokens), useful bytes, and floating-point operations of matrix products."""


@dataclass(frozen=True)
class CountedLayers:
    """What counting needs of the layers held, worked out once for a cache."""

    config: DSV4Config  # the model
    readers: Readers  # as ``group_readers`` gives them; nothing where steps gather
    # compressor sizes by layer, and whether of its indexer; none where entries are of one value
    # each
    pooled: dict[tuple[int, bool], Pooling]
    # pages that a layer reads, its own or its owner's, by layer and whether of keys
    pages: dict[tuple[int, bool], PageLayout]

    @classmethod
    def of(cls, config: DSV4Config, schemas: Sequence[LayerCacheSchema]) -> "CountedLayers":
        """Of these layers."""
        keyed = sd.keyed_layers(schema.layer for schema in schemas)
        pooled = {
            (schema.layer.layer_idx, indexer): pooling
            for schema in schemas
            for indexer in (False, True)
            if not indexer or schema.layer.layer_idx in keyed
            if (pooling := pooling_of(schema, indexer=indexer))
        }
        held = {schema.layer.layer_idx: schema for schema in schemas}
        pages = {
            (index, indexer): page
            for index, schema in held.items()
            for indexer in (False, True)
            if (page := _page(held[schema.layer.kv_owner], indexer))
        }
        return cls(config, group_readers(config, schemas), pooled, pages)


def _page(schema: LayerCacheSchema, indexer: bool) -> PageLayout | None:
    return schema.indexer if indexer else schema.main


@dataclass(frozen=True)
class StepWork:
    """The work of one step."""

    layers: CountedLayers  # those held
    after: Ints  # tokens of every request after the step, int64[B]
    positions: Ints  # positions of the step's tokens, int64[T]
    _reads: dict[tuple[int, str], Read] = field(default_factory=dict, init=False)

    def of(self, operation: str, schema: LayerCacheSchema, *, indexer: bool) -> Work:
        """The work of one operation on one layer."""
        if operation in spec.READS:
            return self._read(operation, schema.layer.layer_idx)
        if operation in {"window_insert", "step_write"}:
            return *self._write_window(operation, schema), 0
        if operation.startswith("gather_"):
            return *self._gather(operation, schema, indexer), 0
        return *self._write(operation, schema, indexer), 0

    def _write_window(self, operation: str, schema: LayerCacheSchema) -> tuple[int, int]:
        ring, tokens = schema.window, len(self.positions)
        assert ring is not None
        stored = min(tokens, len(self.after) * ring.entries)
        moved = spec.insert_bytes(ring.format, stored)
        for indexer in (False, True) if operation == "step_write" else ():
            if part := self.layers.pooled.get((schema.layer.layer_idx, indexer)):
                done = self._completed(part.ratio)
                entry, online = part.entry, part.online
                moved += spec.step_write_bytes(part, entry, tokens, done, online=online)
        return stored, moved

    def _write(self, operation: str, schema: LayerCacheSchema, indexer: bool) -> tuple[int, int]:
        page, tokens = self.layers.pages[schema.layer.layer_idx, indexer], len(self.positions)
        done, entry = self._completed(schema.layer.ratio), page.format
        part = self.layers.pooled.get((schema.layer.layer_idx, indexer))
        if part is None:
            return done, spec.insert_bytes(entry, done)
        if operation == "state_append":
            return tokens, spec.state_append_bytes(part, tokens, online=part.online)
        if operation == "flush":
            return done, spec.flush_bytes(part, entry, done, online=part.online)
        return tokens, spec.compress_chunk_bytes(part, entry, tokens, done, part.state_rows)

    def _gather(self, operation: str, schema: LayerCacheSchema, indexer: bool) -> tuple[int, int]:
        config, requests = self.layers.config, len(self.after)
        if operation == "gather_window":
            assert schema.window is not None
            found = int(np.minimum(self.after, config.window_tokens).sum())
            return found, spec.gather_window_bytes(schema.window.format, found, requests)
        page = self.layers.pages[schema.layer.layer_idx, indexer]
        lengths = self.after // schema.layer.ratio
        if operation == "gather_topk":
            found = int(np.minimum(lengths, config.index_topk).sum())
            asked = requests * config.index_topk
            return found, spec.gather_topk_bytes(page.format, found, asked)
        found, blocks = int(lengths.sum()), int((-(-lengths // page.entries)).sum())
        return found, spec.gather_all_bytes(page.format, found, blocks)

    def _completed(self, ratio: int) -> int:
        return int(np.count_nonzero((self.positions + 1) % ratio == 0))

    def _read(self, operation: str, layer: int) -> Work:
        config = self.layers.config
        if not self._reads:
            for read in decode_reads(config, self.layers.readers, self.positions + 1):
                self._reads.update(dict.fromkeys(((i, read.operation) for i in read.layers), read))
        read = self._reads[layer, operation]
        flops, entries = int(read.flops.sum()), len(self.positions)
        if operation == "index_scores":
            entries = flops // spec.index_scores_flops(1, config.index_heads, config.index_dim)
        elif operation == "attend":
            entries = flops // spec.attend_flops(1, config.num_heads, config.head_dim)
        return entries, read.step_bytes(self._last), flops

    @cached_property
    def _last(self) -> Ints:
        """The last token of every request, int64[B]; tokens of a request are neighbours."""
        last, end = [], 0
        for tokens in self.after.tolist():
            end += tokens - int(self.positions[end])
            last.append(end - 1)
        return np.array(last)
