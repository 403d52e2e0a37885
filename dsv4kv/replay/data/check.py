"""Compares what steps gather with a run without reuse, bit for bit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.cache.handle import LayerCache, LayerCacheHandle
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.cache.step import StepBatch
from dsv4kv.serve.executor import StepTokens
from dsv4kv.serve.inputs import InputBank, PromptContents, Queries
from dsv4kv.serve.operations import CallMaker, Outputs, Reads, Step, chunk_writes


class FreshCache:
    """A cache with one slot, blocks of its own, and nothing that anybody left behind.

    The contents of a token depend on its prompt and its position alone, so the request comes out
    as it would in a cache that serves nobody twice.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        layers: Sequence[LayerCache],
        inputs: InputBank,
        contents: PromptContents,
        chunk_tokens: int,
    ) -> None:
        """Use ``layers`` of ``manager``, which has one slot, in chunks of so many tokens."""
        config = manager.plan.config
        self._manager, self._inputs, self._contents = manager, inputs, contents
        self._layers = {layer.schema.layer.layer_idx: layer for layer in layers}
        self._chunk_tokens = chunk_tokens
        self._outputs = Outputs(manager.device, config.index_topk, config.window_tokens)
        self._admit()
        self._request, self._tokens = -1, 0
        self._step: StepTokens | None = None

    def compute(self, request: int, tokens: int) -> None:
        """Bring a request, by its running number, to so many tokens.

        One that is here already goes on from where it is.
        """
        if request != self._request or tokens < self._tokens:
            self._manager.release_request(self._slot, self._generation)
            self._admit()
            self._request, self._tokens = request, 0
        while self._tokens < tokens:
            end = min(tokens, self._tokens + self._chunk_tokens)
            self._run_chunk(self._tokens, end)
            self._tokens = end

    def _admit(self) -> None:
        self._slot = self._manager.admit_request()
        self._generation = self._manager.generation(self._slot)

    def gather(self, layer_idx: int, operation: Step) -> Tensor:
        """What ``gather_all`` or ``gather_window`` returns for the request: bf16[n, D].

        The next gather overwrites it.
        """
        (call,) = self._maker(self._layers[layer_idx]).make_all([operation])
        call.run()
        assert call.out is not None
        return call.out[0]

    def _run_chunk(self, before: int, after: int) -> None:
        slots, first, end = (np.array([n], dtype=np.int64) for n in (self._slot, before, after))
        prepare_forward(self._manager, slots, first, end)
        batch = StepBatch(self._manager, slots, first, end)
        requests = np.array([self._request], dtype=np.int64)
        self._step = StepTokens(batch, requests, end, contents=self._contents)
        for layer in self._layers.values():
            for call in self._maker(layer).make_all(chunk_writes(layer)):
                call.run()

    def _maker(self, layer: LayerCache) -> CallMaker:
        step = self._step
        assert step is not None
        rows = torch.from_numpy(step.rows(0, step.batch.positions.numpy()))
        inputs = self._inputs.take(rows, {})
        handle = LayerCacheHandle(layer, step.batch)
        return CallMaker(handle, inputs, self._outputs, step.longest_tokens)


Kind = Literal["fresh", "shared", "copied", "recomputed", "resumed"]
KINDS: tuple[Kind, ...] = ("fresh", "shared", "copied", "recomputed", "resumed")
_FRESH, _SHARED, _COPIED, _RECOMPUTED, _RESUMED = range(len(KINDS))
UNKNOWN = -1
"""An entry that a truncated window left inexact; nobody reads it once its chunk has ended."""

Kinds = NDArray[np.int64]
"""Places in ``KINDS``, or ``UNKNOWN``."""


@dataclass(frozen=True)
class Running:
    """A request in a slot, and where it began.

    Attributes:
        slot: Its slot.
        generation: The slot's, since the request holds it.
        resumed_tokens: Tokens after which it resumed; 0 where it computes everything.
        found_tokens: Tokens whose blocks it found.
        exact: Window and state there were what they had to be; else a stretch before the end of
            what was found is computed again to have them.
        again: It had been evicted and started again.
        lost: Whether each shared block of its prompt had been cached and evicted, bool[n].
        shared_tokens: Tokens of a shared block.
        block_tokens: Tokens of a block.
    """

    slot: int
    generation: int
    resumed_tokens: int
    found_tokens: int
    exact: bool
    again: bool
    lost: NDArray[np.bool_]
    shared_tokens: int
    block_tokens: int

    def kinds_of_entries(self, entries: Ids, ratio: int, pooled: int, before: int) -> Kinds:
        """Where entries int64[n] came from: ``pooled`` tokens each, the last ``ratio`` its own.

        ``before`` are the request's tokens before the step that gathers them.
        """
        ends = (entries + 1) * ratio
        # blocks that were found are named as soon as the tokens before them are there
        named = max(self.resumed_tokens, min(self.found_tokens, before))
        named -= named % self.block_tokens
        kinds = self._computed(entries * ratio)
        kinds[(ends > self.resumed_tokens) & self._straddles(ends - pooled)] = _RESUMED
        kinds[ends <= self.resumed_tokens] = _COPIED
        kinds[ends <= named] = _SHARED
        if not self.exact:
            kinds[(ends > max(named, self.resumed_tokens)) & (ends <= self.found_tokens)] = UNKNOWN
        return kinds

    def kinds_of_window(self, positions: Ids) -> Kinds:
        """Where window entries int64[n] came from."""
        kinds = self._computed(positions)
        kinds[self._straddles(positions)] = _RESUMED
        return kinds

    def _straddles(self, firsts: Ids) -> NDArray[np.bool_]:
        """What needs tokens that a checkpoint brought back."""
        return (firsts < self.resumed_tokens) & (self.exact and self.resumed_tokens > 0)

    def _computed(self, positions: Ids) -> Kinds:
        """Computed by the request, for the first time or again."""
        places = positions // self.shared_tokens
        kinds = np.full(len(positions), _RECOMPUTED if self.again else _FRESH)
        if len(self.lost):
            known = places < len(self.lost)
            kinds[known & self.lost[np.minimum(places, len(self.lost) - 1)]] = _RECOMPUTED
        return kinds


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

    def layer_attended(
        self, layer: LayerCache, step: StepTokens, asked: Queries, found: Reads
    ) -> None:
        """Steps gather here: what they read is compared bit for bit."""

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
        kinds = choice.running.kinds_of_entries(
            entries.numpy(), part.ratio, part.rows, choice.before
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
