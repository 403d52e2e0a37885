"""Bytes that the cache operations of a step move, as tables over the length of a request.

The terms are those of ``dsv4kv.ops.traffic``, the same that ``dsv4kv bench`` counts: a decode step
inserts, appends, flushes what is complete and gathers; a prompt chunk inserts, compresses and
gathers what is visible. Sums over steps are differences of running sums, so a stretch of steps
costs no more to work out than one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.schedule import AttentionType, LayerSpec
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops import traffic

if TYPE_CHECKING:
    from dsv4kv.ops.compressor import Compressor


Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pooling:
    """What the byte model asks of a compressor: its sizes.

    Attributes:
        ratio: Tokens of an entry.
        rows: Tokens that one entry pools.
        dim: Channels of an entry.
        channels: Channels of kv and score of one token.
        state_rows: Rows that stay in the state.
        online: Whether the state is the running softmax.
        entry: Format of an entry.
    """

    ratio: int
    rows: int
    dim: int
    channels: int
    state_rows: int
    online: bool
    entry: EntryFormat

    @property
    def compressor(self) -> "Compressor":
        """As the byte model knows it: of a compressor it asks for these sizes alone."""
        return cast("Compressor", self)


@dataclass(frozen=True)
class ChunkTerm:
    """One kind of traffic of a prompt chunk, of all its layers.

    Attributes:
        token_bytes: For every token.
        kept_bytes: For every token whose row or window entry stays.
        kept_tokens: How many of these there are at most.
        ratio: Tokens of an entry.
        entry_bytes: For every entry completed.
    """

    token_bytes: int
    kept_bytes: int = 0
    kept_tokens: int = 0
    ratio: int = 1
    entry_bytes: int = 0


class StepBytes:
    """Bytes of every operation of a model's layers.

    Attributes:
        updates: int64[n]: a decode token that makes a request ``n`` tokens long.
        gathers: int64[n]: what a decode step of a request of ``n`` tokens reads.
        visible: int64[n]: what a prompt chunk that ends at ``n`` tokens reads.
    """

    def __init__(
        self, config: DSV4Config, schemas: Sequence[LayerCacheSchema], longest_tokens: int
    ) -> None:
        """Fill the tables up to ``longest_tokens``."""
        lengths = np.arange(longest_tokens + 1, dtype=np.int64)
        self.updates, self.gathers, self.visible = (np.zeros_like(lengths) for _ in range(3))
        self._poolings: dict[Pooling, int] = {}
        self._windows: dict[PageLayout, int] = {}
        self._plain: dict[EntryFormat, int] = {}  # entries that are not compressed
        owners = {schema.layer.layer_idx: schema for schema in schemas}
        for schema in schemas:
            self._count_writes(schema, config)
            self._count_reads(schema, owners.get(schema.layer.kv_owner, schema), config, lengths)
        self._add_updates(lengths)
        self._chunk_terms = list(self._find_chunk_terms())

    def chunks(self, before: int, after: int, count: int = 1) -> int:
        """Bytes that ``count`` equal prompt chunks of a request write, and read to write them."""
        tokens = after - before
        return sum(
            term.token_bytes * tokens
            + term.kept_bytes * count * min(tokens // count, term.kept_tokens)
            + term.entry_bytes * (after // term.ratio - before // term.ratio)
            for term in self._chunk_terms
        )

    def _find_chunk_terms(self) -> Iterator[ChunkTerm]:
        for ring, layers in self._windows.items():
            yield ChunkTerm(0, layers * traffic.insert_bytes(ring.format, 1), ring.entries)
        for entry, layers in self._plain.items():
            yield ChunkTerm(layers * traffic.insert_bytes(entry, 1))
        for pool, layers in self._poolings.items():
            cost = partial(traffic.compress_chunk_bytes, pool.compressor, pool.entry)
            row, entry_bytes = layers * cost(1, 0, 0), layers * cost(0, 1, 0)
            yield ChunkTerm(row, row, pool.state_rows, pool.ratio, entry_bytes)

    def _count_writes(self, schema: LayerCacheSchema, config: DSV4Config) -> None:
        if schema.window:
            self._windows[schema.window] = self._windows.get(schema.window, 0) + 1
        parts = ((schema.main, schema.state_shape, config.head_dim),
                 (schema.indexer, schema.indexer_state_shape, config.index_dim))  # fmt: skip
        for page, shape, dim in parts:
            if page and shape:
                pool = _pooling(schema, page, shape, dim)
                self._poolings[pool] = self._poolings.get(pool, 0) + 1
            elif page:
                self._plain[page.format] = self._plain.get(page.format, 0) + 1

    def _add_updates(self, lengths: Ints) -> None:
        for ring, layers in self._windows.items():
            self.updates += layers * traffic.insert_bytes(ring.format, 1)
        for entry, layers in self._plain.items():
            self.updates += layers * traffic.insert_bytes(entry, 1)
        for pool, layers in self._poolings.items():
            append = traffic.state_append_bytes(pool.compressor, 1, online=pool.online)
            flush = traffic.flush_bytes(pool.compressor, pool.entry, 1, online=pool.online)
            self.updates += layers * (append + (lengths % pool.ratio == 0) * flush)
        self.updates[0] = 0

    def _count_reads(
        self,
        schema: LayerCacheSchema,
        owner: LayerCacheSchema,
        config: DSV4Config,
        lengths: Ints,
    ) -> None:
        if schema.window:
            found = np.minimum(lengths, config.window_tokens)
            entry = schema.window.format
            self.gathers += _linear(lambda n: traffic.gather_window_bytes(entry, n, 1), found)
        if owner.indexer and schema.layer.selects:
            every = _read_all(owner.indexer, lengths // owner.layer.ratio)
            self.gathers += every
            self.visible += every
        if owner.main and schema.layer.ratio:
            entries = lengths // owner.layer.ratio
            every = _read_all(owner.main, entries)
            self.visible += every
            if schema.layer.attn is AttentionType.HCA:
                self.gathers += every
            else:
                topk, entry = config.index_topk, owner.main.format
                found = np.minimum(entries, topk)
                self.gathers += _linear(lambda n: traffic.gather_topk_bytes(entry, n, topk), found)


def _pooling(
    schema: LayerCacheSchema, page: PageLayout, shape: tuple[int, ...], dim: int
) -> Pooling:
    overlap = 2 if schema.layer.attn is AttentionType.CSA else 1
    online = len(shape) == 2
    return Pooling(
        ratio=schema.layer.ratio,
        rows=schema.layer.ratio * overlap,
        dim=dim,
        channels=dim * overlap,
        state_rows=3 if online else shape[1],
        online=online,
        entry=page.format,
    )


def _read_all(page: PageLayout, entries: Ints) -> Ints:
    """Bytes of reading all entries of one request, page by page."""
    found = _linear(lambda n: traffic.gather_all_bytes(page.format, n, 0), entries)
    blocks = -(-entries // page.entries)
    return found + _linear(lambda n: traffic.gather_all_bytes(page.format, 0, n), blocks)


def _linear(cost: Callable[[int], int], counts: Ints) -> Ints:
    """A cost that is linear in a count, for many counts."""
    fixed = cost(0)
    result: Ints = fixed + counts * (cost(1) - fixed)
    return result


_PER_WEIGHT = 2
"""A multiplication and an addition."""
_PER_CHANNEL = 4
"""Score and weighted sum of attention, both of them a multiplication and an addition."""


def token_operations(
    config: DSV4Config,
    schemas: Sequence[LayerCacheSchema],
    active_parameters: int,
    longest_tokens: int,
) -> Ints:
    """int64[n]: operations of the token that makes a request ``n`` tokens long.

    Every head attends to the window and to the entries that its layer reads; an indexer scores
    every visible entry (arXiv:2606.19348), or those of candidate blocks, in the layers that
    select. Softmax, norms and quantisation are left out.
    """
    lengths = np.arange(longest_tokens + 1, dtype=np.int64)
    total = np.full_like(lengths, _PER_WEIGHT * active_parameters)
    window = np.minimum(lengths, config.window_tokens)
    per_entry = _PER_CHANNEL * config.num_heads * config.head_dim
    per_key = _PER_WEIGHT * config.index_heads * config.index_dim
    for schema in schemas:
        spec = schema.layer
        entries = lengths // spec.ratio if spec.ratio else np.zeros_like(lengths)
        chosen = entries
        if spec.ratio and spec.attn is not AttentionType.HCA:
            chosen = np.minimum(entries, config.index_topk)
            total += per_key * _scored(config, spec, entries)
        total += per_entry * (chosen + (window if schema.window else 0))
    return total


def _scored(config: DSV4Config, spec: LayerSpec, entries: Ints) -> Ints:
    """Keys that a layer's indexer scores of so many; candidate blocks counted as whole ones."""
    if not spec.selects:
        return np.zeros_like(entries)
    if config.candidates is None or spec.layer_idx <= config.candidates.source:
        return entries
    return np.minimum(entries, config.candidates.blocks * config.candidates.block_entries)
