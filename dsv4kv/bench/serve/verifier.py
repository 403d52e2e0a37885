"""Checks what the cache returns against the reference, computed from the inputs alone."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.bench.serve.executor import Call, Reads, StepTokens
from dsv4kv.bench.serve.inputs import InputBank, PlacedContexts, Queries, StepInputs
from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import Compressors, LayerCache
from dsv4kv.model.config import AttentionType
from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.check import LSE_ERROR, OUTPUT_ERROR, SCORE_ERROR, Rows, is_close
from dsv4kv.ops.storage import Compressor, PageStore

_SCORES = 64  # of a token that are compared


class At(NamedTuple):
    """Where samples are taken: a layer, a step, and a request of it by its place in the batch."""

    layer: LayerCache
    step: StepTokens
    b: int

    @property
    def blocks(self) -> NDArray[np.int32]:
        """The request's blocks in the layer, on the host: int32[width]."""
        assert self.layer.table is not None
        slot = int(self.step.batch.request_slots[self.b])
        row: NDArray[np.int32] = self.layer.table.blocks[self.layer.lane, slot]
        return row

    def row(self, position: int) -> int:
        """Input row of one of the request's tokens."""
        return int(self.step.rows(self.b, np.array([position]))[0])


def gathered(step: StepTokens, call: Call, inputs: StepInputs) -> Tensor:
    """Entries int[B, K] that a call has gathered; −1 was not asked for."""
    ratio = call.layer.schema.layer.ratio
    if call.operation[0] == "gather_topk":
        return inputs.topk[ratio].cpu()
    lengths = step.batch.tokens_after // ratio
    entries = torch.arange(int(lengths.max())).expand(len(lengths), -1)
    return entries.masked_fill(entries >= lengths[:, None], -1)


@dataclass
class Verifier:
    """Samples one output of one request of every gather it is shown, or of every attention."""

    inputs: InputBank  # the data the cache was fed, on the host
    compressors: Compressors  # main and indexer compressor of every layer, on the host
    random: np.random.Generator  # chooses the samples
    contexts: PlacedContexts | None = None  # what was placed; None where prompts are served
    checks: Counter[str] = field(default_factory=Counter)  # comparisons made, by operation
    failures: list[str] = field(default_factory=list)  # a sentence for each output that differed

    def look(self, step: StepTokens, call: Call, inputs: StepInputs) -> None:
        """Check what a read of one layer returned."""
        layer, (operation, indexer) = call.layer, call.operation
        if operation == "attend":
            self._check_reads(layer, step, inputs, call)
            return
        out, at = call.tensors["out"], At(layer, step, self._any(step.batch.num_requests))
        found = out[at.b].cpu()
        if operation == "gather_window":
            self._check_window(at, found)
        else:
            indices = gathered(step, call, inputs)[at.b]
            self._check_entries(at, indices, found[: len(indices)], indexer)

    def _check_window(self, at: At, found: Tensor) -> None:
        """Window entries must equal the quantised inputs, bit for bit."""
        assert at.layer.window is not None
        tokens = int(at.step.batch.tokens_after[at.b])
        visible = min(tokens, len(found))
        i = self._any(visible)
        expected = self._window(at.layer.window.layout.format, at.row(tokens - visible + i))
        if not torch.equal(found[i], expected) or bool(found[visible:].count_nonzero()):
            self._fail("gather_window", at, f"position {tokens - visible + i}")
        self.checks["gather_window"] += 1

    def _check_entries(self, at: At, indices: Tensor, found: Tensor, indexer: bool) -> None:
        """Entries must equal their tokens' pooling, within rounding; what is none, zeros."""
        name = "indexer keys" if indexer else "compressed KV"
        asked = indices >= 0
        if bool(found[~asked].count_nonzero()):
            self._fail(name, at, "entries that were not asked for")
        places = asked.nonzero().squeeze(1)
        if len(places):
            k = int(places[self._any(len(places))])
            self._check_entry(name, at, indexer, int(indices[k]), found[k])
        self.checks[name] += 1

    def _check_reads(
        self, layer: LayerCache, step: StepTokens, inputs: StepInputs, call: Call
    ) -> None:
        """Check what a token scored, selected and attended to by the bytes in its pages."""
        assert inputs.queries is not None
        assert call.reads is not None
        t = self._any(step.batch.num_tokens)
        at = At(layer, step, int(step.batch.request_ids[t]))
        tokens = int(step.batch.positions[t]) + 1  # that it sees, itself included
        if layer.indexer is not None and layer.schema.layer.selects:
            self._check_scores(at, t, tokens, call.reads)
        self._check_attention(at, t, tokens, inputs.queries, call.reads)

    def _any(self, count: int) -> int:
        return int(self.random.integers(count))

    def _check_scores(self, at: At, t: int, tokens: int, found: Reads) -> None:
        """Some scores within ``SCORE_ERROR``, and the selection exactly, given the scores."""
        seen = tokens // at.layer.part(indexer=True).ratio
        if not seen:
            return
        scores, blocks = found.scores[t].cpu(), None
        columns = keys = np.arange(seen)
        if at.layer.is_narrow:
            blocks = found.blocks[t : t + 1].cpu()
            columns, keys = _columns(blocks[0].numpy(), len(scores), seen)
        places = self.random.integers(len(keys), size=_SCORES)
        values = self._stored(at, True, keys[places], "index_scores")
        codes = found.codes[t].cpu().view(torch.float8_e4m3fn).double()
        products = (codes @ values.T).clamp_(min=0)
        expected = found.weights[t].cpu().double() @ products
        error = (scores[columns[places]] - expected).abs().max()
        if not error <= SCORE_ERROR * scores[columns].abs().max():
            self._fail("index_scores", at, f"a score of token {tokens - 1}")
        self.checks["index_scores"] += 1
        part, row = at.layer.part(indexer=False), torch.from_numpy(at.blocks)
        chosen, entries = (torch.empty_like(found.chosen[:1]).cpu() for _ in range(2))
        lengths, slots = torch.tensor([tokens // part.ratio]), torch.tensor([0])
        given = scores[None], lengths, blocks, row[None], slots
        reference.select_topk(*given, part.store.layout.entries, chosen, entries)
        pairs = ((chosen, found.chosen), (entries, found.entries))
        if not all(torch.equal(right[0], taken[t].cpu()) for right, taken in pairs):
            self._fail("select_topk", at, f"the selection of token {tokens - 1}")
        self.checks["select_topk"] += 1

    def _check_attention(self, at: At, t: int, tokens: int, asked: Queries, found: Reads) -> None:
        """Output and log-sum-exp of every head, from entries decoded in float64."""
        layer, parts = at.layer, [self._near(at, tokens)]
        if layer.main is not None:
            seen = tokens // layer.main.ratio
            every = layer.schema.layer.attn is AttentionType.HCA
            chosen = np.arange(seen) if every else found.chosen[t].cpu().numpy()
            chosen = chosen[(chosen >= 0) & (chosen < seen)]
            if len(chosen):
                parts.append(self._stored(at, False, chosen, "attend"))
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
            self._fail("attend", at, f"the output of token {tokens - 1}")
        self.checks["attend"] += 1

    def _near(self, at: At, tokens: int) -> Tensor:
        """The window that a token sees, as stored, float64[n, D]; one entry is compared."""
        ring = at.layer.window
        assert ring is not None
        size, slot = ring.layout.entries, int(at.step.batch.request_slots[at.b])
        first = max(0, tokens - at.layer.model.window_tokens)
        values = _decoded(ring, slot * size + np.arange(first, tokens) % size)
        k = self._any(len(values))
        expected = self._window(ring.layout.format, at.row(first + k))
        if not torch.equal(values[k].bfloat16(), expected):
            self._fail("attend", at, f"position {first + k} of the window")
        return values

    def _stored(self, at: At, indexer: bool, entries: Ids, name: str) -> Tensor:
        """Entries of a request as stored, float64[n, D]; one of them is compared."""
        store = at.layer.part(indexer).store
        each = store.layout.entries
        pages = at.blocks[entries // each].astype(np.int64)
        values = _decoded(store, pages * each + entries % each)
        k = self._any(len(entries))
        self._check_entry(name, at, indexer, int(entries[k]), values[k].bfloat16())
        return values

    def _check_entry(self, name: str, at: At, indexer: bool, entry: int, found: Tensor) -> None:
        """An entry bf16[D] must be the placed one or, up to rounding, the one of its tokens."""
        form, compressor = at.layer.part(indexer).store.layout.format, self._made(at, indexer)
        placed = None
        if self.contexts is not None:
            serial = int(at.step.requests[at.b])
            placed = self.contexts.value(at.layer, indexer, serial, entry)
        if placed is not None:
            right = torch.equal(found, _read(form, _encoded(form, placed)))
        elif compressor is None and not (indexer and at.layer.hadamard):
            right = torch.equal(found, _read(form, self._entry(at, indexer, entry)))
        else:
            rotated = compressor is not None and compressor.turns_rounded
            expected = self._entry(at, indexer, entry)
            right = is_close(form, found, expected, rotated=rotated)
        if not right:
            self._fail(name, at, f"entry {entry}")

    def _made(self, at: At, indexer: bool) -> Compressor | None:
        """The host's copy of what makes the entries that a layer reads; None if nothing does."""
        return self.compressors.get(at.layer.schema.layer.kv_owner, (None, None))[indexer]

    def _window(self, form: EntryFormat, row: int) -> Tensor:
        """A window entry as it must come back, from its token's input row: bf16[D]."""
        return _read(form, _encoded(form, self.inputs.every.window[row]))

    def _entry(self, at: At, indexer: bool, entry: int) -> Rows:
        """Entry of a request from its tokens' inputs, worked out in float64."""
        part, compressor = at.layer.part(indexer), self._made(at, indexer)
        form = part.store.layout.format
        every, dims = self.inputs.every, form.dims
        if compressor is not None and part.is_pooled:
            first = entry * compressor.ratio
            end = first + compressor.ratio
            positions = np.arange(end - compressor.rows, end)
            rows = torch.from_numpy(at.step.rows(at.b, np.maximum(positions, 0)))
            kv, score = every.kv[compressor.channels][rows], every.score[compressor.channels][rows]
            score = score + compressor.ape[torch.from_numpy(positions % compressor.ratio)]
            score[torch.from_numpy(positions < 0)] = -torch.inf  # before the start
            kv, score = reference.group_of_tokens(compressor, kv, score)
            return _encoded(form, reference.finish(compressor, reference.pool(kv, score), first))
        first, last = entry * part.ratio, (entry + 1) * part.ratio - 1
        values = every.entries(dims)
        assert values is not None
        given = values[at.row(last)]
        if compressor is not None:
            return _encoded(form, reference.finish(compressor, given.double(), first))
        rotated = indexer and at.layer.hadamard
        return _encoded(form, reference.rotate(given.double()) if rotated else given)

    def _fail(self, name: str, at: At, what: str) -> None:
        spec, request = at.layer.schema.layer, int(at.step.requests[at.b])
        self.failures.append(
            f"{name}: {what} of request {request} in layer {spec.layer_idx} ({spec.attn}) differs "
            "from the reference."
        )


def _read(entry: EntryFormat, rows: Rows) -> Tensor:
    return torch.tensor(reference.decode(entry, *rows), dtype=torch.float64).bfloat16()


def _encoded(entry: EntryFormat, values: Tensor) -> Rows:
    return reference.encode(entry, values.float().tolist())


def _decoded(store: PageStore, entries: Ids) -> Tensor:
    """Physical entries as float64[n, D], on the host."""
    rows = torch.from_numpy(entries).to(store.pages.device)
    shape = len(rows), store.layout.format.dims
    found = torch.empty(shape, dtype=torch.bfloat16, device=rows.device)
    cpu.decode(store.layout.format, *store.read(rows), found)
    return found.cpu().double()


def _columns(blocks: Ids, width: int, seen: int) -> tuple[Ids, Ids]:
    size = width // len(blocks)
    keys = (blocks.astype(np.int64)[:, None] * size + np.arange(size)).ravel()
    columns = ((np.repeat(blocks, size) >= 0) & (keys < seen)).nonzero()[0]
    return columns, keys[columns]
