"""Entries, useful bytes and floating-point operations of a step, by layer and operation.

Counted from the layers' schemas alone: nothing is asked of the cache, and no torch is needed.
Useful bytes are those that an operation must read and write, whatever the hardware: values,
entries, states and indices, each once. Not counted: page padding, tables shared by a whole batch,
parameters. Source of the terms: DeepSeek-V4 report, section 3.5. Floating-point operations count
matrix products, a multiplication and an addition each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dsv4kv.model.config import AttentionType, DSV4Config, keyed_layers, scores_candidates
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.plan import LayerCacheSchema
from dsv4kv.ops.spec import READS

Ints = NDArray[np.int64]
Work = tuple[int, int, int]
"""Entries (rows, tokens), useful bytes, and floating-point operations of matrix products."""

_INDEX_BYTES, _TABLE_BYTES, _FLOAT_BYTES = 8, 4, 4


@dataclass(frozen=True, eq=False)
class _Layer:
    """What the work of a layer follows from; layers that are alike share one."""

    ratio: int  # tokens per compressed entry; 0 without
    window: PageLayout | None  # ring of its window
    main: PageLayout | None  # page of the entries that it reads, its own or its owner's
    keys: PageLayout | None  # page of indexer keys, its own or its owner's
    state: tuple[int, ...]  # shape of its compressor's state; empty where nothing is pooled
    keys_state: tuple[int, ...]  # the same of its indexer, where a layer selects by its keys
    every: bool  # whether it attends to all entries, not to chosen ones
    is_narrow: bool  # whether it scores candidate blocks alone


@dataclass(frozen=True)
class CountedLayers:
    """What counting needs of the layers held, worked out once for a cache."""

    config: DSV4Config  # the model
    by_index: dict[int, _Layer]  # layers by their numbers

    @classmethod
    def of(cls, config: DSV4Config, schemas: Sequence[LayerCacheSchema]) -> "CountedLayers":
        """Of these layers; those that own no entries read their owner's."""
        held = {schema.layer.layer_idx: schema for schema in schemas}
        keyed = keyed_layers(schema.layer for schema in schemas)
        kinds, by_index = dict[object, _Layer](), {}
        for index, schema in held.items():
            owner = held[schema.layer.kv_owner]
            facts = (
                schema.layer.ratio,
                schema.window,
                owner.main,
                owner.indexer,
                schema.state_shape if schema.main else (),
                schema.indexer_state_shape if schema.indexer and index in keyed else (),
                schema.layer.attn is AttentionType.HCA,
                scores_candidates(config, schema.layer),
            )
            by_index[index] = kinds.setdefault(facts, _Layer(*facts))
        return cls(config, by_index)


@dataclass(frozen=True)
class StepWork:
    """The work of one step."""

    layers: CountedLayers  # those held
    after: Ints  # tokens of every request after the step, int64[B]
    positions: Ints  # positions of the step's tokens, int64[T]; those of a request are neighbours
    _counted: dict[tuple[_Layer, str, bool], Work] = field(default_factory=dict, init=False)

    def of(self, operation: str, schema: LayerCacheSchema, *, indexer: bool) -> Work:
        """The work of one operation on one layer."""
        layer = self.layers.by_index[schema.layer.layer_idx]
        key = layer, operation, indexer
        if key not in self._counted:
            if operation in READS:
                self._counted[key] = self._read(operation, layer)
            elif operation.startswith("gather_"):
                self._counted[key] = self._gather(operation, layer, indexer)
            else:
                self._counted[key] = self._write(operation, layer, indexer)
        return self._counted[key]

    def _write(self, operation: str, layer: _Layer, indexer: bool) -> Work:
        tokens = len(self.positions)
        if operation in ("window_insert", "step_write"):
            assert layer.window is not None
            stored = min(tokens, len(self.after) * layer.window.entries)
            moved = _inserted(layer.window.format, stored)
            for page, state in ((layer.main, layer.state), (layer.keys, layer.keys_state)):
                if operation == "step_write" and page and state:
                    # the token that completes an entry is not read again, an online state neither
                    again = self._completed(layer) * page.format.dims * 2 * _FLOAT_BYTES
                    moved += self._appended(state) + self._flushed(layer, page, state) - again
            return stored, moved, 0
        page, state = (layer.keys, layer.keys_state) if indexer else (layer.main, layer.state)
        assert page is not None
        done = self._completed(layer)
        if not state:
            return done, _inserted(page.format, done), 0
        if operation == "state_append":
            return tokens, self._appended(state), 0
        if operation == "flush":
            return done, self._flushed(layer, page, state), 0
        kept = min(tokens, 3 if len(state) == 2 else state[1])  # rows that stay in the state
        rows = (tokens + kept) * state[-1] * 2 * _FLOAT_BYTES
        return tokens, rows + done * page.format.entry_bytes, 0

    def _completed(self, layer: _Layer) -> int:
        """Entries that the step's tokens complete."""
        return int(np.count_nonzero((self.positions + 1) % layer.ratio == 0))

    def _appended(self, state: tuple[int, ...]) -> int:
        """Kv and score in; two rows out, or three read and written of an online state."""
        return len(self.positions) * state[-1] * (8 if len(state) == 2 else 4) * _FLOAT_BYTES

    def _flushed(self, layer: _Layer, page: PageLayout, state: tuple[int, ...]) -> int:
        """The pooled rows of kv and score in (two sums of an online state), entries out."""
        floats = 2 * state[-1] * (1 if len(state) == 2 else layer.ratio)
        return self._completed(layer) * (floats * _FLOAT_BYTES + page.format.entry_bytes)

    def _gather(self, operation: str, layer: _Layer, indexer: bool) -> Work:
        config, requests = self.layers.config, len(self.after)
        if operation == "gather_window":
            page, places = layer.window, requests * _INDEX_BYTES
            found = np.minimum(self.after, config.window_tokens)
        else:
            page, found = layer.keys if indexer else layer.main, self.after // layer.ratio
        assert page is not None
        if operation == "gather_topk":
            places = requests * config.index_topk * _TABLE_BYTES
            found = np.minimum(found, config.index_topk)
        elif operation == "gather_all":
            places = int((-(-found // page.entries)).sum()) * _TABLE_BYTES
        entries = int(found.sum())
        return entries, places + entries * (page.format.entry_bytes + 2 * page.format.dims), 0

    def _read(self, operation: str, layer: _Layer) -> Work:
        config, tokens = self.layers.config, len(self.positions)
        if operation == "attend":
            return self._attend(layer)
        heads, dims = config.index_heads, config.index_dim
        if operation == "indexer_query":  # bf16 vectors, weights and turns in, codes out
            of_head = 3 * dims + 2 * _FLOAT_BYTES
            return tokens, tokens * (heads * of_head + config.rope_dim * _FLOAT_BYTES), 0
        assert layer.keys is not None
        seen, scored, places = self._scored(layer)
        scores = int(scored.sum())
        if operation == "index_scores":
            # tokens of a request share its keys; keys of candidate blocks are each token's own
            last = slice(None) if layer.is_narrow else self._last
            keys = (scored if layer.is_narrow else seen)[
                last
            ].sum() * layer.keys.format.entry_bytes
            tables = places if layer.is_narrow else -(-seen // layer.keys.entries)
            moved = int(keys + tables[last].sum() * _TABLE_BYTES) + scores * _FLOAT_BYTES
            queries = tokens * heads * (dims + _FLOAT_BYTES)
            return scores, moved + queries, 2 * scores * heads * dims
        if operation == "select_blocks":
            assert config.candidates is not None
            return tokens, (scores + tokens * config.candidates.blocks) * _TABLE_BYTES, 0
        chosen = int(places.sum()) + 2 * tokens * config.index_topk
        return tokens, (scores + chosen) * _TABLE_BYTES, 0

    def _scored(self, layer: _Layer) -> tuple[Ints, Ints, Ints]:
        """Keys that each token sees, and scores, and of how many candidate blocks: int64[T]."""
        seen, candidates = (self.positions + 1) // layer.ratio, self.layers.config.candidates
        if not layer.is_narrow or candidates is None:
            return seen, seen, np.zeros_like(seen)
        size = candidates.block_entries
        blocks = np.minimum(-(-seen // size), candidates.blocks)
        newest = (seen - 1) % size + 1  # entries of the newest block, as far as it goes
        return seen, (blocks - 1) * size + newest, blocks

    def _attend(self, layer: _Layer) -> Work:
        """Of the window and, where there are any, of chosen or all compressed entries.

        Every token counts what it reads, though neighbours share most of a window. DeepSeek-V3.2
        is counted as if its values were whole entries; they are a part of them.
        """
        config, tokens = self.layers.config, self.positions + 1
        heads, dims = config.num_heads, config.head_dim
        # a length, bf16 queries in, bf16 outputs and lse out
        moved = len(tokens) * (_INDEX_BYTES + heads * (4 * dims + _FLOAT_BYTES))
        attended = 0
        if layer.window:
            attended = int(np.minimum(tokens, config.window_tokens).sum())
            moved += attended * layer.window.format.entry_bytes
        if layer.main:
            found = tokens // layer.ratio
            places = int((-(-found // layer.main.entries)).sum())
            if not layer.every:
                found = np.minimum(found, config.index_topk)
                places = len(tokens) * config.index_topk
            entries = int(found.sum())
            moved += entries * layer.main.format.entry_bytes + places * _TABLE_BYTES
            attended += entries
        return attended, moved, 4 * attended * heads * dims

    @cached_property
    def _last(self) -> Ints:
        """The last token of every request, int64[B]."""
        last, end = [], 0
        for tokens in self.after.tolist():
            end += tokens - int(self.positions[end])
            last.append(end - 1)
        return np.array(last)


def _inserted(entry: EntryFormat, count: int) -> int:
    """Of entries inserted: bf16 value and index in, entry out, normalised or not."""
    return count * (2 * entry.dims + _INDEX_BYTES + entry.entry_bytes)
