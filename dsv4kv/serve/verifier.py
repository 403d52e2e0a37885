"""Checks what the cache returns against the reference, worked out from the inputs alone.

A sampled output is right only if the token's data went through quantisation, ring, state,
pooling, page and table of its own request: a recycled block, a stale row or a wrong table shows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.handle import Compressors, LayerCache
from dsv4kv.model.formats import EntryFormat
from dsv4kv.ops import reference, reference_codec
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.tolerance import Rows, is_close
from dsv4kv.serve.executor import StepTokens
from dsv4kv.serve.inputs import InputBank
from dsv4kv.serve.placing import PlacedContexts


@dataclass
class Verifier:
    """Samples one output of one request of every gather it is shown.

    Attributes:
        inputs: The data the cache was fed, on the host.
        compressors: Main and indexer compressor of every layer, on the host.
        random: Chooses the samples.
        contexts: What was placed; None where prompts are served.
        checks: Comparisons made, by operation.
        failures: A sentence for each output that differed.
    """

    inputs: InputBank
    compressors: Compressors
    random: np.random.Generator
    contexts: PlacedContexts | None = None
    checks: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

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
        given = self.inputs.every.values(part.dims)[int(step.rows(b, np.array([last]))[0])]
        if compressor is not None:
            return _stored(form, reference.finish(compressor, given.double(), first))
        rotated = indexer and layer.hadamard
        return _stored(form, reference.rotate(given.double()) if rotated else given)

    def _pooled(self, compressor: Compressor, step: StepTokens, b: int, entry: int) -> Tensor:
        first = entry * compressor.ratio
        positions = np.arange(first + compressor.ratio - compressor.rows, first + compressor.ratio)
        rows = torch.from_numpy(step.rows(b, np.maximum(positions, 0)))
        inputs = self.inputs.compressors[compressor.channels]
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
