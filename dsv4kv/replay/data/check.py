"""Compares what steps gather with a run without reuse, bit for bit."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.handle import LayerCache
from dsv4kv.replay.data.fresh import FreshCache
from dsv4kv.replay.data.places import KINDS, UNKNOWN, Kinds, Running
from dsv4kv.workload.executor import StepTokens

_LOOKS = 16
"""A request is looked at so often before the next one's turn: going on with it costs little."""


@dataclass(frozen=True)
class _Choice:
    """The request of a step that is compared: its place in the batch, and where it began."""

    place: int
    number: int
    running: Running
    before: int


@dataclass
class ReuseCheck:
    """Compares everything that one request of a step gathers; the one compared least so far.

    Attributes:
        fresh: Computes what must come out.
        by_operation: Entries compared, by operation.
        by_kind: Entries compared, by where they came from.
        failures: A sentence for every gather that differed.
    """

    fresh: FreshCache
    by_operation: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _looks: Counter[int] = field(default_factory=Counter)
    _choice: _Choice | None = None

    def choose(self, step: StepTokens, running: list[Running], before: list[int]) -> bool:
        """Prepare to be shown a step; False where nothing in it can be compared.

        What a step gathers behind a draft that will be rejected is of no consequence.
        """
        after = step.batch.tokens_after.tolist()
        numbers = step.requests.tolist()
        whole = [b for b, end in enumerate(after) if end <= step.kept[b]]
        if not whole:
            return False
        last = self._choice.number if self._choice else None
        place = min(
            whole,
            key=lambda b: (self._looks[numbers[b]] // _LOOKS, numbers[b] != last, numbers[b]),
        )
        self._looks[numbers[place]] += 1
        self._choice = _Choice(place, numbers[place], running[place], before[place])
        self.fresh.compute(numbers[place], after[place])
        return True

    def window_gathered(self, layer: LayerCache, step: StepTokens, out: Tensor) -> None:
        """All window entries of the request."""
        choice = self._chosen()
        end = int(step.batch.tokens_after[choice.place])
        visible = min(end, out.shape[1])
        positions = np.arange(end - visible, end)
        expected = self.fresh.gather(layer.schema.layer.layer_idx, ("gather_window", False))
        kinds = choice.running.kinds_of_window(positions)
        found = out[choice.place, :visible]
        self._compare("gather_window", layer, (found, expected[:visible]), positions, kinds)

    def entries_gathered(
        self, layer: LayerCache, step: StepTokens, indices: Tensor, out: Tensor, indexer: bool
    ) -> None:
        """All entries of the request that were asked for."""
        choice = self._chosen()
        asked = indices[choice.place] >= 0
        entries = indices[choice.place][asked].long()
        part = layer.indexer if indexer else layer.main
        assert part is not None
        if not len(entries):
            return
        expected = self.fresh.gather(layer.schema.layer.layer_idx, ("gather_all", indexer))
        pooling = part.compressor
        kinds = choice.running.kinds_of_entries(
            entries.numpy(), pooling.ratio, pooling.rows, choice.before
        )
        name = "indexer keys" if indexer else "compressed KV"
        pair = out[choice.place][asked], expected[entries]
        self._compare(name, layer, pair, entries.numpy(), kinds)

    def _chosen(self) -> _Choice:
        assert self._choice is not None, "a step is shown that was not announced"
        return self._choice

    def _compare(
        self,
        name: str,
        layer: LayerCache,
        rows: tuple[Tensor, Tensor],
        places: "np.ndarray[tuple[int], np.dtype[np.int64]]",
        kinds: Kinds,
    ) -> None:
        found, expected = (each.contiguous().view(torch.int16) for each in rows)
        known = kinds != UNKNOWN
        for kind, count in zip(*np.unique(kinds[known], return_counts=True), strict=True):
            self.by_kind[KINDS[kind]] += int(count)
        self.by_operation[name] += int(known.sum())
        wrong = known & (found != expected).any(dim=1).numpy()
        if wrong.any():
            first, spec = int(wrong.argmax()), layer.schema.layer
            self.failures.append(
                f"{name}: {int(wrong.sum()):,} of {int(known.sum()):,} entries of request "
                f"{self._chosen().number} in layer {spec.layer_idx} ({spec.attn}) differ from a "
                f"run without reuse, the first of them {places[first]}, {KINDS[kinds[first]]}."
            )
