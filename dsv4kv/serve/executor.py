"""Runs a step's operations on real bytes, layer by layer, as a decoder would."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.device_tables import DeviceTables, stage
from dsv4kv.cache.handle import LayerCache, LayerCacheHandle
from dsv4kv.cache.step import StagedStep, StepBatch, StepView
from dsv4kv.measure.recorder import DeviceClock, Recorder
from dsv4kv.ops.cuda.launch import dependent_launches
from dsv4kv.serve.graphs import DecodeGraphs
from dsv4kv.serve.inputs import (
    EntryChooser,
    InputBank,
    PromptContents,
    Queries,
    QueryBank,
    StepInputs,
)
from dsv4kv.serve.operations import (
    Call,
    CallMaker,
    Outputs,
    Reads,
    Step,
    StepWork,
    chunk_writes,
    decode_operations,
    prefill_operations,
    read_operations,
    selecting_ratios,
)
from dsv4kv.serve.placing import PlacedContexts


@dataclass(frozen=True)
class StepTokens:
    """Tokens of a step.

    Attributes:
        batch: The tokens as the cache sees them.
        requests: Running number of every request of the batch, int64[B].
        kept: Tokens of every request once rejected drafts are rolled back, int64[B].
        observed: Show what is gathered to the observer.
        contents: What prompts have in common; None where every token is its request's own.
    """

    batch: StepBatch
    requests: Ids
    kept: Ids
    observed: bool = False
    contents: PromptContents | None = None

    @property
    def longest_tokens(self) -> int:
        """Most tokens of a request after the step."""
        return int(self.batch.tokens_after.max())

    def rows(self, members: Ids | int, positions: Ids) -> Ids:
        """Input rows of tokens, by request (0 … B − 1) and position, as this step sees them."""
        serials, rejected = self.requests[members], positions >= self.kept[members]
        if self.contents is None:
            return InputBank.rows(serials, positions, rejected)
        return self.contents.rows(np.broadcast_to(serials, positions.shape), positions, rejected)


Chosen = Mapping[int, Tensor]
"""Entries that layers read which select some, int32[B, K] by ratio, on the host."""

Show = Callable[[LayerCache, Call], None]
"""Shows the observer what a call of a step has read."""


class StepObserver(Protocol):
    """Looks at what a layer's gathers returned, wherever that is."""

    def window_gathered(self, layer: LayerCache, step: StepTokens, out: Tensor) -> None:
        """``out`` bf16[B, W, D] holds the windows of the batch."""

    def entries_gathered(
        self, layer: LayerCache, step: StepTokens, indices: Tensor, out: Tensor, indexer: bool
    ) -> None:
        """``out`` bf16[B, K, ·] holds the entries ``indices`` int[B, K]; −1 was not asked for."""

    def layer_attended(
        self, layer: LayerCache, step: StepTokens, asked: Queries, found: Reads
    ) -> None:
        """``found`` holds what a layer scored, selected and attended to."""


@dataclass(frozen=True)
class Gpu:
    """What only a run on a GPU has.

    Attributes:
        tables: Block tables on the device.
        clock: Times steps there; a host's clock would time their launches.
        graphs: Captured decode steps; None launches every operation.
        in_turns: Every other decode step is launched operation by operation, to be compared.
        fused: A step writes a layer with one kernel, not with one for each operation.
        dependent: A kernel is set up while the one before it still runs.
    """

    tables: DeviceTables
    clock: DeviceClock
    graphs: DecodeGraphs | None = None
    in_turns: bool = False
    fused: bool = True
    dependent: bool = False


@dataclass
class StepExecutor:
    """Drives every layer's cache through a step.

    On the CPU every operation is timed; on a GPU decode steps are, see ``Gpu``.

    Attributes:
        layers: The cache.
        inputs: Data, on the device of the cache.
        recorder: Takes the samples.
        observer: Is shown the gathers of observed steps.
        chooser: Chooses what CSA layers read.
        outputs: Where gathers write.
        index_topk: Entries that are chosen.
        window_tokens: Tokens of a window.
        device: Where the cache is.
        gpu: None on the CPU.
        contexts: Places prompts; None where they are served.
        queries: What decode steps ask that read in place; None where they gather.
    """

    layers: Sequence[LayerCache]
    inputs: InputBank
    recorder: Recorder
    observer: StepObserver
    chooser: EntryChooser
    outputs: Outputs
    index_topk: int
    window_tokens: int
    device: torch.device
    gpu: Gpu | None = None
    contexts: PlacedContexts | None = None
    queries: QueryBank | None = None
    _turns: Counter[bool] = field(default_factory=Counter, init=False)

    @property
    def in_place(self) -> bool:
        """Whether decode steps read in place, as engines do."""
        return self.queries is not None

    def decode(self, step: StepTokens) -> None:
        """One token of every request, or one and its drafts: insert, flush, gather."""
        graphs = self._take_graphs(step)
        with self.recorder.excluded():
            rows = step.rows(step.batch.request_ids.numpy(), step.batch.positions.numpy())
            chosen = self._choose(step)
            numbers = stage(torch.from_numpy(rows), self.device)
            topk = {ratio: stage(each, self.device) for ratio, each in chosen.items()}
            inputs = self.inputs.take(numbers, topk)
            if self.queries is not None:
                asked = self.queries.take(rows, step.batch.positions)
                inputs = replace(inputs, queries=asked)
        show = partial(self._show, step, inputs.queries, chosen)
        if graphs is None:
            dependent = self.gpu is not None and self.gpu.dependent
            with self._span("decode_eager", step), dependent_launches(dependent):
                self._run(step, inputs, show, chunk=False)
        else:
            self._replay(graphs, step, inputs, show)

    def prefill(self, step: StepTokens) -> None:
        """One prompt chunk of one request: insert and compress, then read what is visible."""
        with self.recorder.excluded():
            inputs = self.inputs.take(self._chunk_rows(step), {})
        self._run(step, inputs, partial(self._show, step, None, {}), chunk=True)

    def place(self, step: StepTokens) -> None:
        """The end of one request's prompt, written as it is served; all its entries are placed."""
        assert self.contexts is not None
        slots, after = step.batch.request_slots.numpy(), step.batch.tokens_after.numpy()
        self.prepare(slots, after)
        view: StepView = step.batch
        if self.gpu is not None:
            view = StagedStep(step.batch, self.device)
            self.gpu.tables.publish()
        inputs = self.inputs.take(self._chunk_rows(step), {})
        for layer in self.layers:
            handle = LayerCacheHandle(layer, view)
            maker = CallMaker(handle, inputs, self.outputs, step.longest_tokens)
            for call in maker.make_all(chunk_writes(layer)):
                call.run()
        self.contexts.place(int(slots[0]), int(step.requests[0]), int(after[0]))

    def _chunk_rows(self, step: StepTokens) -> slice | Tensor:
        """Input rows of a prompt chunk: one after another, unless prompts share contents."""
        positions = step.batch.positions.numpy()
        if step.contents is not None:
            return stage(torch.from_numpy(step.rows(0, positions)), self.device)
        first = int(step.rows(0, positions[:1])[0])
        return slice(first, first + len(positions))  # a view, not a copy

    def prepare(self, slots: Ids, tokens: Ids) -> None:
        """Tables on the device follow the host's: slots int64[B] hold tokens int64[B].

        All requests of a step at once, as on the host, or blocks would differ. A step of decodes
        alone does so itself, as its graph's first node.
        """
        if self.gpu is not None:
            numbers = stage(torch.from_numpy(np.stack([slots, tokens])), self.device)
            self.gpu.tables.prepare(numbers[0], numbers[1])

    def _take_graphs(self, step: StepTokens) -> DecodeGraphs | None:
        """The graphs if it is their turn; observed steps take turns among themselves."""
        if self.gpu is None:
            return None
        self._turns[step.observed] += 1
        eager = self.gpu.in_turns and self._turns[step.observed] % 2 == 0
        return None if eager else self.gpu.graphs

    def _run(self, step: StepTokens, inputs: StepInputs, show: Show, *, chunk: bool) -> None:
        """Launch the operations of every layer, one after the other."""
        view: StepView = step.batch
        if self.gpu is not None:
            view = StagedStep(step.batch, self.device)
            self.gpu.tables.publish()
            if not chunk:
                self.gpu.tables.prepare(view.request_slots, view.tokens_after)
        work = self._work(step)
        fused = self.gpu is not None  # on the CPU each operation is timed by itself
        decoding = partial(decode_operations, fused=fused, engine=self.in_place)
        for layer in self.layers:
            handle = LayerCacheHandle(layer, view)
            maker = CallMaker(handle, inputs, self.outputs, step.longest_tokens)
            for operation in prefill_operations(layer) if chunk else decoding(layer):
                with self.recorder.excluded():
                    call = maker.make(*operation)
                if call is None:
                    continue
                self._call(call, layer, work)
                if step.observed and call.is_shown:
                    with self.recorder.excluded():
                        show(layer, call)

    def _work(self, step: StepTokens) -> StepWork:
        after, positions = step.batch.tokens_after.numpy(), step.batch.positions.numpy()
        schemas = [layer.schema for layer in self.layers]
        return StepWork(after, positions, self.index_topk, self.window_tokens, schemas)

    def step_operations(self, layer: LayerCache) -> list[Step]:
        """Operations of a decode step on a layer."""
        fused = self.gpu is not None and self.gpu.fused
        return decode_operations(layer, fused=fused, engine=self.in_place)

    def _call(self, call: Call, layer: LayerCache, work: StepWork) -> None:
        if self.gpu is not None:
            call.run()
            return
        with self.recorder.excluded():
            entries, moved_bytes = work.of(call, layer)
            flops = work.flops(call, layer)
        attn = layer.schema.layer.attn.value
        with self.recorder.timed(call.name, attn, entries, moved_bytes, flops):
            call.run()

    def _replay(
        self, graphs: DecodeGraphs, step: StepTokens, inputs: StepInputs, show: Show
    ) -> None:
        assert self.gpu is not None
        graph = graphs.graph_for(step.batch.num_requests)
        with self.recorder.excluded():
            graphs.load(inputs)
        with self._span("decode_graph", step):
            step.batch.check_current()
            self.gpu.tables.publish()
            graphs.replay(graph, step.batch)
        if step.observed:
            with self.recorder.excluded():
                for layer, call in graph.gathers:
                    show(layer, call)
                self._show_every_layer(step, inputs, show)

    def _show_every_layer(self, step: StepTokens, inputs: StepInputs, show: Show) -> None:
        """The layers of a graph share outputs: read each again, to see what the graph wrote."""
        view = StagedStep(step.batch, self.device)
        for layer in self.layers:
            handle = LayerCacheHandle(layer, view)
            maker = CallMaker(handle, inputs, self.outputs, step.longest_tokens)
            for call in maker.make_all(read_operations(layer, engine=self.in_place)):
                call.run()
                if call.is_shown:
                    show(layer, call)

    def _show(
        self,
        step: StepTokens,
        asked: Queries | None,
        chosen: Chosen,
        layer: LayerCache,
        call: Call,
    ) -> None:
        if call.reads is not None:
            assert asked is not None
            self.observer.layer_attended(layer, step, asked, call.reads)
            return
        assert call.out is not None
        out = call.out[: step.batch.num_requests]
        if call.operation == "gather_window":
            self.observer.window_gathered(layer, step, out)
        elif call.operation == "gather_topk":
            indices = chosen[layer.schema.layer.ratio]
            self.observer.entries_gathered(layer, step, indices, out, False)
        else:
            lengths = step.batch.tokens_after // layer.schema.layer.ratio
            entries = torch.arange(int(lengths.max())).expand(len(lengths), -1)
            indices = entries.masked_fill(entries >= lengths[:, None], -1)
            visible = out[:, : indices.shape[1]]
            self.observer.entries_gathered(layer, step, indices, visible, call.indexer)

    def _choose(self, step: StepTokens) -> Chosen:
        """What layers read that select some, on the host: the same entries in all of a ratio."""
        after = step.batch.tokens_after.numpy()
        ratios = [] if self.in_place else selecting_ratios(self.layers)
        return {ratio: self.chooser.choose(after // ratio) for ratio in ratios}

    @contextmanager
    def _span(self, name: str, step: StepTokens) -> Iterator[None]:
        """Time a decode step on the host and on the GPU; one that is looked at is not timed."""
        if self.gpu is None or step.observed or not self.recorder.enabled:
            yield
            return
        start_ns = self.recorder.now_ns()
        with self.gpu.clock.span(f"{name}_device"):
            yield
        self.recorder.keep(f"{name}_host", start_ns)
