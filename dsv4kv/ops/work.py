"""Entries, useful bytes and floating-point operations of a step, by layer and operation.

Counted from the layers' schemas alone: nothing is asked of the cache, and no torch is needed.
Useful bytes are those that an operation must read and write, whatever the hardware: values,
entries, states and indices, each once. Not counted: page padding, tables shared by a whole batch,
parameters. Source of the terms: DeepSeek-V4 report, section 3.5. Floating-point operations count
matrix products, a multiplication and an addition each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dsv4kv.model.config import (
    AttentionType,
    Candidates,
    DSV4Config,
    keyed_layers,
    scores_candidates,
)
from dsv4kv.model.formats import EntryFormat, PageLayout
from dsv4kv.model.plan import LayerCacheSchema
from dsv4kv.ops.spec import READS

Ints = NDArray[np.int64]
Work = tuple[int, int, int]
"""Entries (rows, tokens), useful bytes, and floating-point operations of matrix products."""

_INDEX_BYTES, _TABLE_BYTES, _FLOAT_BYTES = 8, 4, 4


@dataclass(frozen=True)
class StepWork:
    """The work of one step."""

    config: DSV4Config  # the model
    schemas: Sequence[LayerCacheSchema]  # the layers held
    after: Ints  # tokens of every request after the step, int64[B]
    positions: Ints  # positions of the step's tokens, int64[T]; those of a request are neighbours

    def of(self, operation: str, schema: LayerCacheSchema, *, indexer: bool) -> Work:
        """The work of one operation on one layer."""
        owner = next(e for e in self.schemas if e.layer.layer_idx == schema.layer.kv_owner)
        if operation in READS:
            return self._read(operation, schema, owner)
        page = owner.indexer if indexer else owner.main
        if operation.startswith("gather_"):
            return self._gather(operation, schema, page)
        return self._write(operation, schema, page, indexer)

    def _write(
        self, operation: str, schema: LayerCacheSchema, page: PageLayout | None, indexer: bool
    ) -> Work:
        tokens, done = len(self.positions), self._completed(schema.layer.ratio)
        if operation in ("window_insert", "step_write"):
            assert schema.window is not None
            stored = min(tokens, len(self.after) * schema.window.entries)
            moved = _inserted(schema.window.format, stored)
            keyed = schema.layer.layer_idx in self._keyed
            parts = [(schema.main, schema.state_shape)]
            parts += [(schema.indexer, schema.indexer_state_shape)] if keyed else []
            for made, state in parts if operation == "step_write" else ():
                if made and state:
                    # the token that completes an entry is not read again, an online state neither
                    again = done * made.format.dims * 2 * _FLOAT_BYTES
                    flushed = done * _flushed(schema.layer.ratio, made, state)
                    moved += tokens * _appended(state) + flushed - again
            return stored, moved, 0
        assert page is not None
        state = schema.indexer_state_shape if indexer else schema.state_shape
        if not state:
            return done, _inserted(page.format, done), 0
        if operation == "state_append":
            return tokens, tokens * _appended(state), 0
        if operation == "flush":
            return done, done * _flushed(schema.layer.ratio, page, state), 0
        kept = min(tokens, 3 if len(state) == 2 else state[1])  # rows that stay in the state
        rows = (tokens + kept) * state[-1] * 2 * _FLOAT_BYTES
        return tokens, rows + done * page.format.entry_bytes, 0

    def _completed(self, ratio: int) -> int:
        """Entries that the step's tokens complete."""
        return int(np.count_nonzero((self.positions + 1) % ratio == 0)) if ratio else 0

    def _gather(self, operation: str, schema: LayerCacheSchema, page: PageLayout | None) -> Work:
        config, requests = self.config, len(self.after)
        if operation == "gather_window":
            page, places = schema.window, requests * _INDEX_BYTES
            found = np.minimum(self.after, config.window_tokens)
        else:
            found = self.after // schema.layer.ratio
        assert page is not None
        if operation == "gather_topk":
            places = requests * config.index_topk * _TABLE_BYTES
            found = np.minimum(found, config.index_topk)
        elif operation == "gather_all":
            places = int((-(-found // page.entries)).sum()) * _TABLE_BYTES
        entries = int(found.sum())
        return entries, places + entries * (page.format.entry_bytes + 2 * page.format.dims), 0

    def _read(self, operation: str, schema: LayerCacheSchema, owner: LayerCacheSchema) -> Work:
        config, tokens = self.config, len(self.positions)
        if operation == "attend":
            return self._attend(schema, owner)
        heads, dims = config.index_heads, config.index_dim
        if operation == "indexer_query":  # bf16 vectors, weights and turns in, codes out
            of_head = 3 * dims + 2 * _FLOAT_BYTES
            return tokens, tokens * (heads * of_head + config.rope_dim * _FLOAT_BYTES), 0
        assert owner.indexer is not None
        candidates = config.candidates if scores_candidates(config, schema.layer) else None
        seen, scored, places = self._scored(schema.layer.ratio, candidates)
        scores = int(scored.sum())
        if operation == "index_scores":
            # tokens of a request share its keys; keys of candidate blocks are each token's own
            last = slice(None) if candidates else self._last
            keys = scored[last].sum() * owner.indexer.format.entry_bytes
            tables = places if candidates else -(-seen // owner.indexer.entries)
            moved = int(keys + tables[last].sum() * _TABLE_BYTES) + scores * _FLOAT_BYTES
            queries = tokens * heads * (dims + _FLOAT_BYTES)
            return scores, moved + queries, 2 * scores * heads * dims
        if operation == "select_blocks":
            assert config.candidates is not None
            return tokens, (scores + tokens * config.candidates.blocks) * _TABLE_BYTES, 0
        chosen = int(places.sum()) + 2 * tokens * config.index_topk
        return tokens, (scores + chosen) * _TABLE_BYTES, 0

    def _scored(self, ratio: int, candidates: Candidates | None) -> tuple[Ints, Ints, Ints]:
        """Keys that each token sees, and scores, and of how many candidate blocks: int64[T]."""
        seen = (self.positions + 1) // ratio
        if candidates is None:
            return seen, seen, np.zeros_like(seen)
        size = candidates.block_entries
        blocks = np.minimum(-(-seen // size), candidates.blocks)
        newest = (seen - 1) % size + 1  # entries of the newest block, as far as it goes
        return seen, (blocks - 1) * size + newest, blocks

    def _attend(self, schema: LayerCacheSchema, owner: LayerCacheSchema) -> Work:
        """Of the window and, where there are any, of chosen or all compressed entries.

        Every token counts what it reads, though neighbours share most of a window. DeepSeek-V3.2
        is counted as if its values were whole entries; they are a part of them.
        """
        config, tokens = self.config, self.positions + 1
        heads, dims = config.num_heads, config.head_dim
        # a length, bf16 queries in, bf16 outputs and lse out
        moved = len(tokens) * (_INDEX_BYTES + heads * (4 * dims + _FLOAT_BYTES))
        attended = 0
        if schema.window:
            attended = int(np.minimum(tokens, config.window_tokens).sum())
            moved += attended * schema.window.format.entry_bytes
        if owner.main:
            found = tokens // schema.layer.ratio
            places = int((-(-found // owner.main.entries)).sum())
            if schema.layer.attn is not AttentionType.HCA:
                found = np.minimum(found, config.index_topk)
                places = len(tokens) * config.index_topk
            entries = int(found.sum())
            moved += entries * owner.main.format.entry_bytes + places * _TABLE_BYTES
            attended += entries
        return attended, moved, 4 * attended * heads * dims

    @cached_property
    def _keyed(self) -> frozenset[int]:
        """Layers with an index."""
        return keyed_layers([each.layer for each in self.schemas])

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


def _appended(state: tuple[int, ...]) -> int:
    """Of a token: kv and score in; two rows out, or three read and written of an online state."""
    return state[-1] * (8 if len(state) == 2 else 4) * _FLOAT_BYTES


def _flushed(ratio: int, page: PageLayout, state: tuple[int, ...]) -> int:
    """Of an entry: pooled rows of kv and score in (two sums of an online state), itself out."""
    floats = 2 * state[-1] * (1 if len(state) == 2 else ratio)
    return floats * _FLOAT_BYTES + page.format.entry_bytes
