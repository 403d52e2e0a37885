"""Checks what the cache returns against the reference, worked out from the inputs alone.

A sampled output is right only if the token's data went through quantisation, ring, state,
pooling, page and table of its own request: a recycled block, a stale row or a wrong table shows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.cache.layers import Compressors, LayerCache
from dsv4kv.model.formats import EntryFormat
from dsv4kv.model.schedule import AttentionType
from dsv4kv.ops import codec, reference, reference_codec
from dsv4kv.ops.check import LSE_ERROR, OUTPUT_ERROR, SCORE_ERROR
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.tolerance import Rows, is_close
from dsv4kv.serve.executor import StepTokens
from dsv4kv.serve.inputs import InputBank, Queries
from dsv4kv.serve.operations import Reads
from dsv4kv.serve.placing import PlacedContexts

Token = tuple[int, int, int]
"""A token of a step: its number, its request's number, and the tokens it sees, itself included."""

Rows64 = NDArray[np.int64]

_SCORES = 64  # of a token that are compared


@dataclass
class Verifier:
    """Samples one output of one request of every gather it is shown, or of every attention."""

    inputs: InputBank  # the data the cache was fed, on the host
    compressors: Compressors  # main and indexer compressor of every layer, on the host
    random: np.random.Generator  # chooses the samples
    contexts: PlacedContexts | None = None  # what was placed; None where prompts are served
    checks: Counter[str] = field(default_factory=Counter)  # comparisons made, by operation
    failures: list[str] = field(default_factory=list)  # a sentence for each output that differed

    def chosen(self, count: int) -> Sequence[int]:
        """Which of ``count`` outputs are compared."""
        return [int(self.random.integers(count))]

    def window_gathered(self, layer: LayerCache, step: StepTokens, out: Tensor) -> None:
        """Window entries must equal the quantised inputs, bit for bit."""
        assert layer.window is not None
        entry = layer.window.layout.format
        for b in self.chosen(step.batch.num_requests):
            tokens, found = int(step.batch.tokens_after[b]), out[b].cpu()
            visible = min(tokens, out.shape[1])
            for i in self.chosen(visible):
                position = tokens - visible + i
                expected = self.window(entry, int(step.rows(b, np.array([position]))[0]))
                if not torch.equal(found[i], expected) or bool(found[visible:].count_nonzero()):
                    self._fail("gather_window", layer, step, b, f"position {position}")
                self.checks["gather_window"] += 1

    def entries_gathered(
        self, layer: LayerCache, step: StepTokens, indices: Tensor, out: Tensor, indexer: bool
    ) -> None:
        """Entries must equal their tokens' pooling, within rounding; what is none, zeros."""
        name = "indexer keys" if indexer else "compressed KV"
        for b in self.chosen(step.batch.num_requests):
            asked, found = indices[b] >= 0, out[b].cpu()
            if bool(found[~asked].count_nonzero()):
                self._fail(name, layer, step, b, "entries that were not asked for")
            places = asked.nonzero().squeeze(1)
            compared = self.chosen(len(places)) if len(places) else ()
            for place in compared:
                k = int(places[place])
                entry = int(indices[b, k])
                if not self._entry_is_right(layer, indexer, step, b, entry, found[k]):
                    self._fail(name, layer, step, b, f"entry {entry}")
            self.checks[name] += max(1, len(compared))

    def layer_attended(
        self, layer: LayerCache, step: StepTokens, asked: Queries, found: Reads
    ) -> None:
        """What a token scored, selected and attended to, from the bytes that are in its pages.

        Some of these entries are compared with the inputs, as gathered ones are.
        """
        for t in self.chosen(step.batch.num_tokens):
            b, tokens = int(step.batch.request_ids[t]), int(step.batch.positions[t]) + 1
            if layer.indexer is not None and layer.schema.layer.selects:
                self._check_scores(layer, step, (t, b, tokens), found)
            self._check_attention(layer, step, (t, b, tokens), asked, found)

    def _check_scores(
        self, layer: LayerCache, step: StepTokens, token: Token, found: Reads
    ) -> None:
        """Some scores within ``SCORE_ERROR``, and the selection exactly, given the scores."""
        (t, b, tokens), part = token, layer.part(indexer=True)
        seen = tokens // part.ratio
        if not seen:
            return
        scores, blocks = found.scores[t].cpu(), None
        columns = np.arange(seen)
        if layer.is_narrow:
            blocks = found.blocks[t : t + 1].cpu()
            columns, keys = _columns(blocks[0].numpy(), len(scores), seen)
        else:
            keys = columns
        places = self.random.integers(len(keys), size=_SCORES)
        asked = keys[places]
        values = self._stored(layer, True, step, b, asked, "index_scores")
        codes = found.codes[t].cpu().view(torch.float8_e4m3fn).double()
        products = (codes @ values.T).clamp_(min=0)
        expected = found.weights[t].cpu().double() @ products
        error = (scores[columns[places]] - expected).abs().max()
        if not error <= SCORE_ERROR * scores[columns].abs().max():
            self._fail("index_scores", layer, step, b, f"a score of token {tokens - 1}")
        self.checks["index_scores"] += 1
        self._check_selection(layer, step, token, found, blocks)

    def _check_selection(
        self,
        layer: LayerCache,
        step: StepTokens,
        token: Token,
        found: Reads,
        blocks: Tensor | None,
    ) -> None:
        (t, b, tokens), part = token, layer.part(indexer=False)
        scores, row = found.scores[t : t + 1].cpu(), self._row(layer, step, b)
        lengths, slots = torch.tensor([tokens // part.ratio]), torch.tensor([0])
        chosen, entries = (torch.empty_like(found.chosen[:1]).cpu() for _ in range(2))
        given = scores, lengths, blocks, row[None], slots, part.store.layout.entries
        reference.select_topk(*given, chosen, entries)
        if not torch.equal(chosen[0], found.chosen[t].cpu()) or not torch.equal(
            entries[0], found.entries[t].cpu()
        ):
            self._fail("select_topk", layer, step, b, f"the selection of token {tokens - 1}")
        self.checks["select_topk"] += 1

    def _check_attention(
        self, layer: LayerCache, step: StepTokens, token: Token, asked: Queries, found: Reads
    ) -> None:
        """Output and log-sum-exp of every head, from entries decoded in float64."""
        t, b, tokens = token
        parts = [self._near(layer, step, b, tokens)]
        if layer.main is not None:
            seen = tokens // layer.main.ratio
            every = layer.schema.layer.attn is AttentionType.HCA
            chosen = np.arange(seen) if every else found.chosen[t].cpu().numpy()
            chosen = chosen[(chosen >= 0) & (chosen < seen)]
            if len(chosen):
                parts.append(self._stored(layer, False, step, b, chosen, "attend"))
        values = torch.cat(parts)
        query = asked.attention[t].cpu().double() * layer.model.head_dim**-0.5
        logits = query @ values.T
        lse = logits.logsumexp(dim=1)
        total = torch.logaddexp(lse, asked.sinks.cpu().double())
        right = (logits - total[:, None]).exp() @ values
        off = (found.attended[t].cpu() - right).abs().amax(dim=1)
        wrong = ~(off <= OUTPUT_ERROR * right.abs().amax(dim=1))
        wrong |= ~((found.lse[t].cpu() - lse).abs() <= LSE_ERROR * lse.abs().clamp(min=1))
        if bool(wrong.any()):
            self._fail("attend", layer, step, b, f"the output of token {tokens - 1}")
        self.checks["attend"] += 1

    def _near(self, layer: LayerCache, step: StepTokens, b: int, tokens: int) -> Tensor:
        """The window that a token sees, as stored, float64[n, D]; one entry is compared."""
        assert layer.window is not None
        size, slot = layer.window.layout.entries, int(step.batch.request_slots[b])
        first = max(0, tokens - layer.model.window_tokens)
        values = _decoded(layer.window, slot * size + np.arange(first, tokens) % size)
        position = first + int(self.random.integers(len(values)))
        row = int(step.rows(b, np.array([position]))[0])
        expected = self.window(layer.window.layout.format, row)
        if not torch.equal(values[position - first].bfloat16(), expected):
            self._fail("attend", layer, step, b, f"position {position} of the window")
        return values

    def _stored(
        self,
        layer: LayerCache,
        indexer: bool,
        step: StepTokens,
        b: int,
        entries: Rows64,
        name: str,
    ) -> Tensor:
        """Entries of a request as stored, float64[n, D]; one of them is compared."""
        store, row = layer.part(indexer).store, self._row(layer, step, b).numpy()
        each = store.layout.entries
        values = _decoded(store, row[entries // each].astype(np.int64) * each + entries % each)
        k = int(self.random.integers(len(entries)))
        value, entry = values[k].bfloat16(), int(entries[k])
        if not self._entry_is_right(layer, indexer, step, b, entry, value):
            self._fail(name, layer, step, b, f"entry {entry}")
        return values

    def _row(self, layer: LayerCache, step: StepTokens, b: int) -> Tensor:
        """A request's blocks in a layer, on the host: int32[width]."""
        assert layer.table is not None
        slot = int(step.batch.request_slots[b])
        return torch.from_numpy(layer.table.blocks[layer.lane, slot])

    def _entry_is_right(
        self, layer: LayerCache, indexer: bool, step: StepTokens, b: int, entry: int, found: Tensor
    ) -> bool:
        """Whether an entry bf16[D] of a request is what was placed, or what its tokens make."""
        placed = self.placed(layer, indexer, step, b, entry)
        if placed is not None:
            form = layer.part(indexer).store.layout.format
            return torch.equal(found, _read(form, placed))
        return self.is_right(layer, indexer, found, self.entry(layer, indexer, step, b, entry))

    def placed(
        self, layer: LayerCache, indexer: bool, step: StepTokens, b: int, entry: int
    ) -> Rows | None:
        """An entry of a context that was placed; None where its tokens went through the cache."""
        if self.contexts is None:
            return None
        value = self.contexts.value(layer, indexer, int(step.requests[b]), entry)
        form = layer.part(indexer).store.layout.format
        return None if value is None else _stored(form, value)

    def compressor_of(self, layer: LayerCache, indexer: bool) -> Compressor | None:
        """The host's copy of what makes the entries that a layer reads; None if nothing does."""
        return self.compressors.get(layer.schema.layer.kv_owner, (None, None))[indexer]

    def is_right(self, layer: LayerCache, indexer: bool, found: Tensor, expected: Rows) -> bool:
        """Whether an entry bf16[D] is the expected one; if it was computed, but for rounding."""
        form = layer.part(indexer).store.layout.format
        compressor = self.compressor_of(layer, indexer)
        if compressor is None and not (indexer and layer.hadamard):
            return torch.equal(found, _read(form, expected))
        rotated = compressor is not None and compressor.turns_rounded
        return is_close(form, found, expected, rotated=rotated)

    def window(self, form: EntryFormat, row: int) -> Tensor:
        """A window entry as it must come back, from its token's input row: bf16[D]."""
        return _read(form, _stored(form, self.inputs.window[row]))

    def entry(
        self, layer: LayerCache, indexer: bool, step: StepTokens, b: int, entry: int
    ) -> Rows:
        """Entry of a request from its tokens' inputs, worked out in float64."""
        part, compressor = layer.part(indexer), self.compressor_of(layer, indexer)
        form = part.store.layout.format
        if compressor is not None and part.is_pooled:
            return _stored(form, self._pooled(compressor, step, b, entry))
        first, last = entry * part.ratio, (entry + 1) * part.ratio - 1
        every, dims = self.inputs.every, form.dims
        values = every.window if dims == every.window.shape[1] else every.projected[dims]
        given = values[int(step.rows(b, np.array([last]))[0])]
        if compressor is not None:
            return _stored(form, reference.finish(compressor, given.double(), first))
        rotated = indexer and layer.hadamard
        return _stored(form, reference.rotate(given.double()) if rotated else given)

    def _pooled(self, compressor: Compressor, step: StepTokens, b: int, entry: int) -> Tensor:
        first = entry * compressor.ratio
        positions = np.arange(first + compressor.ratio - compressor.rows, first + compressor.ratio)
        rows = torch.from_numpy(step.rows(b, np.maximum(positions, 0)))
        inputs = self.inputs.every.compressors[compressor.channels]
        kv = inputs.kv[rows]
        score = inputs.score[rows] + compressor.ape[torch.from_numpy(positions % compressor.ratio)]
        before_start = torch.from_numpy(positions < 0)
        score[before_start] = -torch.inf
        kv, score = reference.group_of_tokens(compressor, kv, score)
        return reference.finish(compressor, reference.pool(kv, score), first)

    def _fail(self, name: str, layer: LayerCache, step: StepTokens, b: int, what: str) -> None:
        spec = layer.schema.layer
        self.failures.append(
            f"{name}: {what} of request {int(step.requests[b])} in layer {spec.layer_idx} "
            f"({spec.attn}) differs from the reference."
        )


def _read(entry: EntryFormat, rows: Rows) -> Tensor:
    return torch.tensor(reference_codec.decode(entry, *rows), dtype=torch.float64).bfloat16()


def _stored(entry: EntryFormat, values: Tensor) -> Rows:
    return reference_codec.encode(entry, values.float().tolist())


def _decoded(store: PageStore, entries: Rows64) -> Tensor:
    """Physical entries as float64[n, D], on the host."""
    rows = torch.from_numpy(entries).to(store.pages.device)
    shape = len(rows), store.layout.format.dims
    found = torch.empty(shape, dtype=torch.bfloat16, device=rows.device)
    codec.decode(store.layout.format, *store.read(rows), found)
    return found.cpu().double()


def _columns(blocks: Rows64, width: int, seen: int) -> tuple[Rows64, Rows64]:
    size = width // len(blocks)
    keys = (blocks.astype(np.int64)[:, None] * size + np.arange(size)).ravel()
    columns = ((np.repeat(blocks, size) >= 0) & (keys < seen)).nonzero()[0]
    return columns, keys[columns]
